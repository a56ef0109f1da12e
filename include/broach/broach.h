// Compiles libtorch programs, without Python.
//
//   torch::NoGradGuard no_grad;
//   auto fast = broach::compile(model);                               // torch::nn::Linear, Sequential, any module's holder
//   at::Tensor y = fast(x);                                           // the first call records and compiles
//   fast->eval();                                                     // the module itself, its parameters, ...
//
//   auto f = broach::compile([](at::Tensor a, at::Tensor b) { return (a * b).relu(); }, broach::Options().pure());
//
//   Net net;                                                          // on the stack: must outlive what is compiled
//   auto g = broach::compile(net, broach::Options().pure());
//   auto encode = broach::compile([&](at::Tensor x) { return net.encode(x); }, broach::uses(net), broach::Options().pure());
//
// The first call with inputs of some element types, sizes and strides runs the program as it is, records the operations
// that libtorch executes and compiles them; it returns what eager returns. Later calls with such inputs run what was
// compiled, and the program's own host code does not run. With autograd on, results have a history, and backward() runs compiled
// code too: of a training step the forward pass, with the loss if you like, is what to compile. Inference belongs under
// torch::NoGradGuard or torch::InferenceMode, which saves nothing and packs weights.
//
// Arguments and results are tensors, numbers, and the standard containers and structs of these: broach/values.h lists them.
// nn::LSTM takes its state: fast(x, std::make_tuple(h, c)). A program may write to the elements of tensors that it takes by reference;
// one that puts another tensor, number or element of a list in their place is refused, since a call could not do the same.
//
// A module's parameters and buffers are read anew on every call: .to(), a parameter put in another's place, train() and
// eval(), modules added or replaced, and writes to elements are all noticed. So it is for the modules that a function names by
// broach::uses; of others that it calls, writes to elements alone are noticed. Options of a layer (a dropout's probability) are
// fixed at the first call, and so is which tensor or module a member of a module class of your own is: one that is assigned to it is
// noticed only if it is registered too (register_parameter, register_buffer, replace_module). After changing one, call reset().
//
// Sizes that change from call to call become symbols of one compiled program, unless host code reads them as plain numbers:
// x.size(0), x.sizes(), x.numel() and x.view({x.size(0), -1}) fix a size, and every other size is compiled anew, up to four times in
// a row; x.sym_size(0), x.sym_sizes(), x.sym_numel(), x.view_symint({x.sym_size(0), -1}), x.flatten(1) and x.view({-1, 8}) do not.
// explain() says which sizes were fixed. An argument of type at::Scalar, c10::SymInt or c10::SymFloat becomes a symbol too (a generic call, as
// that of a compiled module, goes by the type it is given: fast(x, c10::SymInt(i))). A program that writes to tensors is compiled once two
// calls of the same sizes and numbers, or three of others, have shown that it does the same in each.
//
// An element of an integer or boolean tensor that the program reads (ids.argmax().item<int64_t>(), if (x.any().item<bool>())) is compared
// in each call, and every way that data leads to has a version of its own; one of a floating point tensor cannot be read, whatever it is
// asked for as.
//
// Only operations are recorded. A program whose host code itself writes elements (data_ptr(), an accessor), exchanges a tensor's memory by
// set_data() or draws from another generator than the default one is refused. Elements that it reads so, a tensor of from_blob, and what it
// has another thread compute, stay as the first call made them, or the program is refused; so does what host code asks of a tensor besides
// its sizes, type, device and whether it needs gradients.
//
// Gradients of gradients, and of one result by another (asked for, kept, or seen by a hook), run the program again: the compiled object must
// then still be there, or they are an error.
//
// A tensor that the program keeps (a cache that it assigns, an optimizer's state) would stay as the first run made it: such a
// program is refused, after a second run that shows whether it was a cache made once; one that keeps its arguments runs eagerly, as another
// thread might hold them, and is refused after eight runs. Return the tensor and pass it in again.
// What a program keeps in other ways, a counter say, is covered by the promise of Options().pure(). So are gradients that it takes away
// (zero_grad()), training flags that it sets, and that no tensor it holds itself is an argument of the call that is recorded: those of
// modules named by uses() may be.
//
// Any number of threads may call one compiled program.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "broach/error.h"
#include "broach/options.h"
#include "broach/values.h"

namespace torch::nn {
class Module;
class AnyModule;
}  // namespace torch::nn
namespace torch::jit {
struct Module;
}

namespace broach {

// Copies of weights that are kept for one kind of contraction: rearranged for it, or computed once for all calls.
struct KeptWeights {
  std::string what;  // the contraction and the type of its weight, or the type of what was computed
  std::string why;   // "measured", "being measured", "not measured", "computed once"
  int count = 0;     // contractions that read them, or values
  int64_t bytes = 0;
  double seconds = 0, seconds_unpacked = 0;  // of these contractions in one call, as measured: with the copies, and without
};

// What was compiled, and what was not.
struct Explanation {
  int64_t calls = 0, compiled_calls = 0, eager_calls = 0;
  int64_t verified_calls = 0;               // compared with eager
  int programs = 0;                         // compiled versions: one for each kind of inputs
  int kernels = 0, distinct_kernels = 0;    // generated loop nests
  int contractions = 0;                     // matrix products and convolutions
  int routines = 0;                         // scans, sorts, searches, scattered writes
  std::map<std::string, int> externs;       // operations left to libtorch, by schema
  std::vector<std::string> picks;           // which implementation computes each contraction
  std::vector<std::string> guards;          // what a call must have in common with the recorded one
  std::vector<std::string> attempts;        // what each capture was tried with, and what came of it
  std::vector<std::string> recompilations;  // which guard failed each time
  std::vector<std::string> eager_reasons;   // why calls ran eagerly
  std::vector<std::string> fixed_sizes;     // sizes that host code read as plain numbers
  double capture_seconds = 0, compile_seconds = 0;
  int64_t packed_bytes = 0, arena_bytes = 0;  // of all that is kept; intermediate results of one call
  std::vector<KeptWeights> kept;              // the largest first
  int64_t saved_bytes = 0;                    // what a call saves for gradients
  int64_t reruns = 0;                         // of the program, for gradients that compiled code does not give

  std::string str() const;  // as a table
};
std::ostream& operator<<(std::ostream& out, const Explanation& e);

// The modules that a compiled function calls; made by `uses`.
using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

// A compiled program. Copies share what was compiled.
class Compiled {
 public:
  Explanation explain() const;
  // Forgets what was compiled. Not while calls are under way on other threads.
  void reset();

 protected:
  // Calls `target` with the arguments.
  using Program = detail::Values (*)(void* target, const detail::Values& arguments);

  // Throws Error if the program's host code would have to run on every call and the options do not say pure(). `function`: the
  // program is one, that calls the modules.
  Compiled(Modules modules, bool function, std::shared_ptr<void> target, const Options& options);

  // Undefined tensors may be given and returned. Throws Error if the program cannot be compiled (a fraction read on the host, a
  // tensor that it keeps), unless the options say fallback(); errors of libtorch's operations pass through. The call, the first or
  // a later one that is captured, has then done what the program does in place.
  detail::Values run(Program program, detail::Values arguments) const;

  template <class R, class... T>
  R call(Program program, const T&... arguments) const {
    detail::Values values;
    (detail::Layout<T>::put(values, arguments), ...);
    return detail::result_from<R>(run(program, std::move(values)));
  }

 private:
  class State;
  State& state() const;
  std::shared_ptr<State> state_;
};

namespace detail {

// Throws Error if the arguments are not the tensors, numbers and constants that they were before the program ran: a compiled call
// has no access to the caller's variables.
void check_not_rebound(const Values& before, const Values& now);

// What the program could change: not what it was given to take away.
template <class A>
void put_argument(Values& out, const Held<A>& held) {
  if constexpr (!std::is_rvalue_reference_v<A>) Layout<std::remove_cvref_t<A>>::put(out, held);
}

// Calls f with what was put for arguments of types T.
template <class... T, class F>
Values spread(F&& f, const Values& values) {
  Reader from(values);
  std::tuple<Held<T>...> held{Layout<std::remove_cvref_t<T>>::take(from)...};
  auto arguments = [&] {
    Values out;
    std::apply([&](const Held<T>&... x) { (put_argument<T>(out, x), ...); }, held);
    return out;
  };
  const Values before = arguments();
  Values results = values_of_call([&]() -> decltype(auto) { return std::apply(f, held); });
  check_not_rebound(before, arguments());
  return results;
}

template <class Holder>
concept ModuleHolder = requires(const Holder& h) {
  typename Holder::ContainedType;
  h.ptr();
};
template <class T>
struct Pointee {};
template <class M>
struct Pointee<std::shared_ptr<M>> {
  using Shared = M;
};
template <class M, class D>
struct Pointee<std::unique_ptr<M, D>> {
  using Unique = M;
};
template <class T>
concept SharedModule = requires { requires std::derived_from<typename Pointee<T>::Shared, torch::nn::Module>; };
template <class T>
concept UniqueModule = requires { requires std::derived_from<typename Pointee<T>::Unique, torch::nn::Module>; };
template <class T>
concept PlainModule = std::is_class_v<T> && std::derived_from<T, torch::nn::Module>;
template <class T>
constexpr bool no_program = false;

// A module that somebody else owns.
template <class M>
std::shared_ptr<M> borrowed(M& module) {
  return std::shared_ptr<M>(std::shared_ptr<void>(), &module);
}
template <class P>
std::shared_ptr<torch::nn::Module> module_of(P& program) {
  using T = std::remove_const_t<P>;
  if constexpr (ModuleHolder<T> || std::same_as<T, torch::nn::AnyModule>) return program.ptr();
  else if constexpr (SharedModule<T>) return program;
  else if constexpr (UniqueModule<T>) return borrowed(*program);
  else {
    static_assert(PlainModule<T>, "broach::uses: takes modules, their holders and pointers to them");
    static_assert(!std::is_const_v<P>, "broach::uses: a const module cannot be called");
    return borrowed<torch::nn::Module>(program);
  }
}

}  // namespace detail

// Names the modules that a function calls, so that a change of theirs is noticed. Those on the stack must outlive what is compiled.
template <class... M>
Modules uses(M&&... modules) {
  return {detail::module_of(modules)...};
}

// A compiled program with the signature of the function that it stands for.
template <class Signature>
class CompiledFunction;

template <class R, class... A>
class CompiledFunction<R(A...)> : public Compiled {
  using Function = std::function<R(A...)>;
  using Result = detail::Given<R>;

 public:
  CompiledFunction(Function f, Modules modules, const Options& options)
      : Compiled(std::move(modules), true, std::make_shared<Function>(std::move(f)), options) {}

  Result operator()(const std::type_identity_t<std::remove_cvref_t<A>>&... x) const { return call<Result>(&run_function, x...); }

 private:
  static detail::Values run_function(void* target, const detail::Values& values) {
    return detail::spread<A...>([&](detail::Held<A>&... held) -> R { return (*static_cast<Function*>(target))(static_cast<A>(held)...); },
                                values);
  }
};

// One whose arguments' types follow from the call: a generic lambda, a result of std::bind.
template <class F>
class CompiledGeneric : public Compiled {
 public:
  CompiledGeneric(F f, Modules modules, bool function, const Options& options)
      : Compiled(std::move(modules), function, std::make_shared<F>(std::move(f)), options) {}

  template <class... T>
  auto operator()(const T&... x) const {
    return call_as<typename detail::Argument<T>::type...>(x...);
  }

 private:
  template <class... T>
  auto call_as(const T&... x) const {
    static_assert(std::is_invocable_v<F&, detail::Held<T>&...>, "broach: the function does not take these arguments");
    using R = std::invoke_result_t<F&, detail::Held<T>&...>;
    Program program = [](void* target, const detail::Values& values) { return detail::spread<T...>(*static_cast<F*>(target), values); };
    return call<detail::Given<R>>(program, x...);
  }
};

// A compiled module: takes what its forward takes, returns what forward returns, and is the module for everything else
// (fast->weight, fast->train()). In a Sequential it stands as torch::nn::Functional(fast).
template <class M>
class CompiledModule : public Compiled {
 public:
  CompiledModule(std::shared_ptr<M> module, const Options& options)
      : Compiled(Modules{module}, false, module, options), module_(std::move(module)) {}

  template <class... T>
  auto operator()(const T&... x) const {
    return forward_as<typename detail::Argument<T>::type...>(x...);
  }
  auto operator()(std::initializer_list<at::Tensor> list) const { return forward_as<Tensors>(Tensors(list)); }
  template <class... T>
  auto forward(const T&... x) const {
    return (*this)(x...);
  }

  const std::shared_ptr<M>& module() const { return module_; }
  M* operator->() const { return module_.get(); }
  M& operator*() const { return *module_; }
  auto parameters(bool recurse = true) const { return module_->parameters(recurse); }
  auto named_parameters(bool recurse = true) const { return module_->named_parameters(recurse); }
  auto buffers(bool recurse = true) const { return module_->buffers(recurse); }
  auto named_buffers(bool recurse = true) const { return module_->named_buffers(recurse); }
  void train(bool on = true) const { module_->train(on); }
  void eval() const { module_->eval(); }
  bool is_training() const { return module_->is_training(); }
  void zero_grad(bool set_to_none = true) const { module_->zero_grad(set_to_none); }
  template <class... T>
  void to(const T&... where) const {
    module_->to(where...);
  }

 private:
  template <class... T>
  auto forward_as(const T&... x) const {
    static_assert(
        requires(M& m, detail::Held<T>&... held) { m.forward(held...); }, "broach: the module has no forward that takes these arguments");
    using Result = decltype(std::declval<M&>().forward(std::declval<detail::Held<T>&>()...));
    Program program = [](void* target, const detail::Values& values) {
      return detail::spread<T...>([m = static_cast<M*>(target)](detail::Held<T>&... held) { return m->forward(held...); }, values);
    };
    return call<detail::Given<Result>>(program, x...);
  }

  std::shared_ptr<M> module_;
};

// ---- compile ----

// A function object, lambda, function pointer or std::function that calls these modules: compile(f, uses(a, b), options).
template <class F>
auto compile(F f, Modules modules, const Options& options = {}) {
  static_assert(
      !std::is_member_pointer_v<F>,
      "broach::compile: a method is compiled by a lambda: compile([&](at::Tensor x) { return net.encode(x); }, broach::uses(net), options)");
  if constexpr (requires { std::function(f); }) {
    static_assert(std::is_copy_constructible_v<F>,
                  "broach::compile: a function that cannot be copied: let it hold what cannot by std::shared_ptr");
    auto make = []<class Signature>(std::function<Signature> function, Modules m, const Options& o) {
      return CompiledFunction<Signature>(std::move(function), std::move(m), o);
    };
    return make(std::function(std::move(f)), std::move(modules), options);
  } else {
    return CompiledGeneric<F>(std::move(f), std::move(modules), true, options);
  }
}

// A module by its holder, by std::shared_ptr, std::move of a std::unique_ptr, by reference (it must then outlive what is compiled)
// or as torch::nn::AnyModule (whose forward gives one tensor); or a function.
template <class P>
  requires(!std::same_as<std::remove_cvref_t<P>, Modules>)
auto compile(P&& program, const Options& options = {}) {
  using T = std::remove_cvref_t<P>;
  if constexpr (detail::ModuleHolder<T>) {
    return CompiledModule<typename T::ContainedType>(program.ptr(), options);
  } else if constexpr (detail::SharedModule<T>) {
    return CompiledModule<typename detail::Pointee<T>::Shared>(program, options);
  } else if constexpr (detail::UniqueModule<T>) {
    static_assert(
        !std::is_lvalue_reference_v<P>,
        "broach::compile: give a std::unique_ptr away by std::move, or compile *pointer, which must then outlive what is compiled");
    return CompiledModule<typename detail::Pointee<T>::Unique>(std::shared_ptr<typename detail::Pointee<T>::Unique>(std::move(program)),
                                                               options);
  } else if constexpr (std::same_as<T, torch::nn::AnyModule>) {
    auto forward = [any = program](const auto&... x) mutable { return any.forward(std::remove_cvref_t<decltype(x)>(x)...); };
    return CompiledGeneric<decltype(forward)>(std::move(forward), Modules{program.ptr()}, false, options);
  } else if constexpr (std::is_base_of_v<torch::jit::Module, T>) {
    static_assert(
        detail::no_program<T>,
        "broach::compile: a torch::jit::Module takes IValues; compile a lambda: compile([m](at::Tensor x) mutable { return m.forward({x}).toTensor(); }, Options().pure())");
  } else if constexpr (detail::PlainModule<T>) {
    static_assert(std::is_lvalue_reference_v<P> && !std::is_const_v<std::remove_reference_t<P>>,
                  "broach::compile: a module by value or const reference; give the module itself, its holder or a pointer");
    return CompiledModule<T>(detail::borrowed(program), options);
  } else {
    return compile(std::decay_t<P>(std::forward<P>(program)), Modules(), options);
  }
}

}  // namespace broach

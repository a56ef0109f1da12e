// Compiles libtorch programs, without Python.
//
//   auto fast = broach::compile(module, broach::Options());           // torch::nn::Linear, Sequential, a module of your own
//   at::Tensor y = fast(x);                                           // the first call records and compiles
//
//   auto f = broach::compile([](at::Tensor a, at::Tensor b) { return (a * b).relu(); }, broach::Options().pure());
//
// The first call with inputs of some element types, sizes and strides runs the program as it is, records the operations
// that libtorch executes and compiles them; it returns what eager returns. Later calls with such inputs run what was
// compiled, and the program's own host code does not run. A call that needs gradients runs the program eagerly.
//
// A module's parameters and buffers are read anew on every call: .to(), a parameter put in another's place, train() and
// eval(), modules added or replaced, and writes to elements are all noticed. Options of a layer (a dropout's probability)
// are fixed at the first call, and so is which tensor a member is that a module class of your own has assigned without
// registering it; after changing one, call reset().
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

namespace torch::nn {
class Module;
}

namespace broach {

using Tensors = std::vector<at::Tensor>;

// What was compiled, and what was not.
struct Explanation {
  int64_t calls = 0, compiled_calls = 0, eager_calls = 0;
  int programs = 0;                          // compiled versions: one for each kind of inputs
  int kernels = 0, distinct_kernels = 0;     // generated loop nests
  int contractions = 0;                      // matrix products and convolutions
  int routines = 0;                          // scans, sorts, searches, scattered writes
  std::map<std::string, int> externs;        // operations left to libtorch, by schema
  std::vector<std::string> picks;            // which implementation computes each contraction
  std::vector<std::string> guards;           // what a call must have in common with the recorded one
  std::vector<std::string> recompilations;   // which guard failed each time
  std::vector<std::string> eager_reasons;    // why calls ran eagerly
  double capture_seconds = 0, compile_seconds = 0;
  int64_t packed_bytes = 0, arena_bytes = 0;  // rearranged weights; intermediate results of one call

  std::string str() const;  // as a table
};
std::ostream& operator<<(std::ostream& out, const Explanation& e);

// A compiled program of tensors. Copies share what was compiled.
class Compiled {
 public:
  using Host = std::function<Tensors(const Tensors&)>;

  // Throws Error if the program's host code would have to run on every call and the options do not say pure().
  Compiled(Host host, const Options& options);
  // `host` calls `module`.
  Compiled(std::shared_ptr<torch::nn::Module> module, Host host, const Options& options);

  // Undefined tensors may be given and returned. Throws Error if the program cannot be compiled (a value read on the host, a
  // result whose sizes depend on data), unless the options say fallback(); errors of libtorch's operations pass through. The
  // first call has then done what the program does in place.
  Tensors operator()(const Tensors& inputs) const;

  Explanation explain() const;
  // Forgets what was compiled. Not while calls are under way on other threads.
  void reset();

 private:
  class State;
  std::shared_ptr<State> state_;
};

namespace detail {

// How values made of tensors become a list and back: a tensor, a list of tensors, tuples, pairs and arrays of these.
template <class T>
struct Layout {
  template <size_t... I>
  static void put(Tensors& out, T&& value, std::index_sequence<I...>) {
    (Layout<std::tuple_element_t<I, T>>::put(out, std::get<I>(std::move(value))), ...);
  }
  static void put(Tensors& out, T&& value) { put(out, std::move(value), std::make_index_sequence<std::tuple_size_v<T>>()); }
  template <size_t... I>
  static T take(Tensors::iterator& from, Tensors::iterator end, std::index_sequence<I...>) {
    return T{Layout<std::tuple_element_t<I, T>>::take(from, end)...};  // braces evaluate from left to right
  }
  static T take(Tensors::iterator& from, Tensors::iterator end) { return take(from, end, std::make_index_sequence<std::tuple_size_v<T>>()); }
};
template <>
struct Layout<at::Tensor> {
  static void put(Tensors& out, at::Tensor&& value) { out.push_back(std::move(value)); }
  static at::Tensor take(Tensors::iterator& from, Tensors::iterator) { return std::move(*from++); }
};
template <>
struct Layout<Tensors> {  // alone or last, since it takes all that is left
  static void put(Tensors& out, Tensors&& value) { out.insert(out.end(), std::make_move_iterator(value.begin()), std::make_move_iterator(value.end())); }
  static Tensors take(Tensors::iterator& from, Tensors::iterator end) {
    Tensors all(std::make_move_iterator(from), std::make_move_iterator(end));
    from = end;
    return all;
  }
};

template <class R>
Tensors to_list(R&& result) {
  using T = std::remove_cvref_t<R>;
  Tensors out;
  T value(std::forward<R>(result));
  Layout<T>::put(out, std::move(value));
  return out;
}
template <class R>
R from_list(Tensors list) {
  auto from = list.begin();
  return Layout<R>::take(from, list.end());
}

// Calls f with as many tensors as the list has, which must be a number that it takes.
template <size_t Most, class F, size_t... I>
Tensors spread(F&& f, const Tensors& x, std::index_sequence<I...>) {
  if (x.size() == sizeof...(I)) {
    if constexpr (requires { f(x[I]...); }) return to_list(f(x[I]...));
    else throw Error("broach: the program does not take " + std::to_string(x.size()) + " tensors");
  }
  if constexpr (sizeof...(I) < Most) return spread<Most>(std::forward<F>(f), x, std::make_index_sequence<sizeof...(I) + 1>());
  else throw Error("broach: a module called with more than " + std::to_string(Most) + " tensors");
}

}  // namespace detail

// A compiled program with the signature of the function that it stands for.
template <class Signature>
class CompiledFunction;

template <class R, class... A>
class CompiledFunction<R(A...)> : public Compiled {
  static_assert((std::same_as<std::remove_cvref_t<A>, at::Tensor> && ...), "broach::compile: arguments must be tensors, or one std::vector of tensors");
  using Result = std::remove_cvref_t<R>;

 public:
  CompiledFunction(std::function<R(A...)> f, const Options& options)
      : Compiled([f = std::move(f)](const Tensors& x) { return call(f, x, std::index_sequence_for<A...>()); }, options) {}

  Result operator()(const std::type_identity_t<std::remove_cvref_t<A>>&... x) const { return detail::from_list<Result>(Compiled::operator()({x...})); }

 private:
  template <size_t... I>
  static Tensors call(const std::function<R(A...)>& f, const Tensors& x, std::index_sequence<I...>) {
    if constexpr ((std::is_lvalue_reference_v<A> || ...)) {
      Tensors own = x;  // for arguments of type Tensor&
      return detail::to_list(f(static_cast<A>(own[I])...));
    } else {
      return detail::to_list(f(at::Tensor(x[I])...));
    }
  }
};

template <class R, class A>
  requires std::same_as<std::remove_cvref_t<A>, Tensors>
class CompiledFunction<R(A)> : public Compiled {
  using Result = std::remove_cvref_t<R>;

 public:
  CompiledFunction(std::function<R(A)> f, const Options& options)
      : Compiled([f = std::move(f)](const Tensors& x) { return detail::to_list(f(x)); }, options) {}

  Result operator()(const Tensors& x) const { return detail::from_list<Result>(Compiled::operator()(x)); }
};

// A compiled module: takes the tensors that its forward takes and returns what forward returns.
template <class M>
class CompiledModule : public Compiled {
 public:
  CompiledModule(const std::shared_ptr<M>& module, const Options& options)
      : Compiled(module, [m = module.get()](const Tensors& x) { return detail::spread<6>([m](const auto&... t) -> decltype(m->forward(t...)) { return m->forward(t...); }, x, std::index_sequence<>()); }, options) {}

  template <class... T>
    requires(std::convertible_to<const T&, at::Tensor> && ...)
  auto operator()(const T&... x) const {
    using Result = std::remove_cvref_t<decltype(std::declval<M&>().forward(at::Tensor(x)...))>;
    return detail::from_list<Result>(Compiled::operator()({at::Tensor(x)...}));
  }
};

// ---- compile ----

// A module by its holder (torch::nn::Linear, torch::nn::Sequential, classes of TORCH_MODULE).
template <class Holder>
  requires requires(const Holder& h) { typename Holder::ContainedType; h.ptr(); }
auto compile(const Holder& module, const Options& options = {}) {
  return CompiledModule<typename Holder::ContainedType>(module.ptr(), options);
}

// A module by pointer.
template <std::derived_from<torch::nn::Module> M>
auto compile(const std::shared_ptr<M>& module, const Options& options = {}) {
  return CompiledModule<M>(module, options);
}

// A function object, lambda or function pointer that takes tensors, or one std::vector of them.
template <class F>
  requires requires(F f) { std::function(f); }
auto compile(F f, const Options& options = {}) {
  return []<class Signature>(std::function<Signature> function, const Options& o) { return CompiledFunction<Signature>(std::move(function), o); }(std::function(std::move(f)), options);
}

}  // namespace broach

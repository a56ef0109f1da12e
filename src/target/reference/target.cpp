// The target that needs no compiler: it interprets kernels expression by expression, and hands contractions and routines to the
// reference interpreter as graphs of one operation. Slow and obvious; what a program gives on it holds for every target.
//
// It works as a GPU does: a call only puts work into the thread's queue, errors are known once that has been done, and its memory
// (device.h) cannot be touched by anybody else.
#include "target/target.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "support/error.h"
#include "target/reference/device.h"
#include "target/reference/indices.h"
#include "target/reference/interpreter.h"

namespace broach {

namespace {

using reference::dot_product;
using reference::for_each_index;
using reference::ProtectedMemory;
using reference::Queue;
using reference::Sizes;

HostTensor read_window(const void* data, DType dtype, const Sizes& sizes, std::span<const int64_t> strides) {
  HostTensor out = zeros(dtype, sizes);
  const auto size = static_cast<int64_t>(size_of(dtype));
  for_each_index(sizes, [&](const Sizes& index, int64_t i) {
    std::memcpy(out.bytes.data() + i * size, static_cast<const std::byte*>(data) + dot_product(index, strides) * size,
                static_cast<size_t>(size));
  });
  return out;
}

void write_window(const HostTensor& x, void* data, std::span<const int64_t> strides) {
  const auto size = static_cast<int64_t>(size_of(x.type.dtype));
  for_each_index(x.sizes(), [&](const Sizes& index, int64_t i) {
    std::memcpy(static_cast<std::byte*>(data) + dot_product(index, strides) * size, x.bytes.data() + i * size, static_cast<size_t>(size));
  });
}

// What `build` makes of these inputs.
template <class Build>
std::vector<HostTensor> compute(std::span<const HostTensor> inputs, const Build& build) {
  GraphBuilder b;
  std::vector<Value> values;
  for (const HostTensor& t : inputs) values.push_back(b.input(t.type));
  return interpret(b.finish(build(b, values)), inputs);
}

Attrs with_constants(Attrs attrs, std::span<const int64_t> symbols) {
  for (auto& [name, value] : attrs) {
    if (auto number = std::get_if<SymInt>(&value)) *number = number->eval(symbols);
    if (auto shape = std::get_if<Shape>(&value))
      for (SymInt& s : *shape) s = s.eval(symbols);
  }
  return attrs;
}

// ---- kernels ----

// One launch. A value has the rank of the kernel's axes, with size 1 along those that its expression does not use.
class Launch {
 public:
  Launch(const Kernel& k, void* const* buffers, const int64_t* symbols) : k_(k), uses_(axis_uses(k)), buffers_(buffers), symbols_(symbols) {
    for (size_t a = 0; a < k.axes.size(); ++a) position_[k.axes[a].id] = a;
    for (const KernelAxis& a : k.axes) extents_.push_back(a.extent.eval(std::span(symbols, static_cast<size_t>(k.symbols))));
  }

  // False if an index is out of bounds.
  bool run() {
    bool reduces_nothing = false;
    for (size_t a = 0; a < extents_.size(); ++a) {
      if (extents_[a] == 0 && !k_.axes[a].reduced) return true;
      reduces_nothing = reduces_nothing || extents_[a] == 0;
    }
    const std::vector<bool> stored = needed_by_stores();
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const bool runs = stored[i] || !reduces_nothing;  // there may be nothing where it would be loaded from
      values_.push_back(runs ? evaluate(k_.exprs[i], uses_[i]) : zeros(k_.exprs[i].dtype, sizes_over(uses_[i])));
      if (is_out_of_bounds_) return false;
    }
    for (const KernelStore& s : k_.stores) s.adds ? add(s) : write(s);
    return true;
  }

 private:
  using Kind = KernelExpr::Kind;

  // Not those that are needed inside of reductions alone.
  std::vector<bool> needed_by_stores() const {
    std::vector<bool> needed(k_.exprs.size());
    auto mark = [&](int expr) { needed[static_cast<size_t>(expr)] = true; };
    auto mark_access = [&](const Access& a) {
      for (const auto& [expr, stride] : a.dynamic) mark(expr);
    };
    for (const KernelStore& s : k_.stores) mark(s.expr), mark_access(s.access);
    for (size_t i = k_.exprs.size(); i-- > 0;) {
      const KernelExpr& e = k_.exprs[i];
      if (!needed[i]) continue;
      if (e.predicate >= 0) mark(e.predicate);
      mark_access(e.access);
      if (e.kind != Kind::reduction) std::for_each(e.args.begin(), e.args.end(), mark);
    }
    return needed;
  }

  Sizes sizes_over(const std::vector<bool>& axes) const {
    Sizes out;
    for (size_t a = 0; a < axes.size(); ++a) out.push_back(axes[a] ? extents_[a] : 1);
    return out;
  }
  const HostTensor& value(int expr) const { return values_[static_cast<size_t>(expr)]; }
  Scalar at(int expr, const Sizes& point) const {
    const HostTensor& x = value(expr);
    const Sizes sizes = x.sizes();
    int64_t i = 0;
    for (size_t a = 0; a < sizes.size(); ++a) i = i * sizes[a] + (sizes[a] == 1 ? 0 : point[a]);
    return x.at(i);
  }
  bool holds(int predicate, const Sizes& point) const { return predicate < 0 || std::get<bool>(at(predicate, point)); }
  int64_t index(const SymInt& e, const Sizes& point) const {
    return e.eval([&](SymbolId id) { return id < kFirstAxis ? symbols_[id] : point[position_.at(id)]; });
  }
  std::byte* address(const Access& a, const Sizes& point) const {
    int64_t i = index(a.index, point);
    for (const auto& [expr, stride] : a.dynamic) i += as_int(at(expr, point)) * index(stride, point);
    const auto buffer = static_cast<size_t>(a.buffer);
    return static_cast<std::byte*>(buffers_[buffer]) + i * static_cast<int64_t>(size_of(k_.buffers[buffer]));
  }

  HostTensor evaluate(const KernelExpr& e, const std::vector<bool>& axes) {
    const Sizes sizes = sizes_over(axes);
    switch (e.kind) {
      case Kind::op: return apply(e, sizes);
      case Kind::reduction: return reduce(e, sizes);
      case Kind::bounds: return checked(e, sizes);
      default: break;
    }
    HostTensor out = zeros(e.dtype, sizes);
    const auto size = static_cast<int64_t>(size_of(e.dtype));
    if (e.kind == Kind::constant) out.set(0, e.value);
    if (e.kind == Kind::parameter) {
      double number;
      std::memcpy(&number, symbols_ + k_.symbols + as_int(e.value), sizeof number);
      out.set(0, number);
    }
    for_each_index(sizes, [&](const Sizes& point, int64_t i) {
      if (e.kind == Kind::position) out.set(i, index(e.access.index, point));
      if (e.kind == Kind::load && holds(e.predicate, point))
        std::memcpy(out.bytes.data() + i * size, address(e.access, point), static_cast<size_t>(size));
    });
    return out;
  }

  HostTensor apply(const KernelExpr& e, const Sizes& sizes) const {
    std::vector<HostTensor> operands;
    for (int arg : e.args) operands.push_back(value(arg));
    Attrs attrs;
    if (kind_of(e.op) == OpKind::cast) attrs[Attr::dtype] = e.dtype;
    return compute(operands,
                   [&](GraphBuilder& b, std::vector<Value> in) {
                     for (Value& v : in) v = b.expand(v, Shape(sizes.begin(), sizes.end()));
                     return std::vector{b.emit(e.op, in, attrs)};
                   })
        .front();
  }

  HostTensor reduce(const KernelExpr& e, const Sizes& sizes) const {
    Shape whole(sizes.begin(), sizes.end());
    std::vector<int64_t> dims;
    for (size_t a = 0; a < sizes.size(); ++a)
      if (k_.axes[a].reduced) whole[a] = extents_[a], dims.push_back(static_cast<int64_t>(a));
    // As positions count them, the slowest first: axes lie in the order of memory.
    std::vector<int64_t> order = dims;
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](int64_t a) { return step_of(e.access.index, static_cast<size_t>(a)); });
    std::vector<int64_t> places(sizes.size()), back(sizes.size());
    std::iota(places.begin(), places.end(), 0);
    for (size_t i = 0; i < dims.size(); ++i) places[static_cast<size_t>(dims[i])] = order[i];
    for (size_t i = 0; i < places.size(); ++i) back[static_cast<size_t>(places[i])] = static_cast<int64_t>(i);
    return compute(std::span(&value(e.args[0]), 1),
                   [&](GraphBuilder& b, const std::vector<Value>& in) {
                     return std::vector{b.permute(b.reduce(e.op, b.permute(b.expand(in[0], whole), places), dims, true), back)};
                   })
        .front();
  }

  // How far one step along an axis moves a position.
  int64_t step_of(const SymInt& position, size_t axis) const {
    Sizes first(k_.axes.size()), next = first;
    next[axis] = 1;
    return index(position, next) - index(position, first);
  }

  HostTensor checked(const KernelExpr& e, const Sizes& sizes) {
    HostTensor out = zeros(e.dtype, sizes);
    for_each_index(sizes, [&](const Sizes& point, int64_t i) {
      const int64_t n = as_int(at(e.args[0], point));
      is_out_of_bounds_ = is_out_of_bounds_ || (holds(e.predicate, point) && (n < 0 || n >= index(e.limit, point)));
      out.set(i, n);
    });
    return out;
  }

  void write(const KernelStore& s) const {
    std::vector<bool> axes = uses_[static_cast<size_t>(s.expr)];
    for (size_t a = 0; a < axes.size(); ++a) axes[a] = axes[a] || !k_.axes[a].reduced || s.access.index.contains(k_.axes[a].id);
    HostTensor one = zeros(value(s.expr).type.dtype, Sizes());
    for_each_index(sizes_over(axes), [&](const Sizes& point, int64_t) {
      one.set(0, at(s.expr, point));
      std::memcpy(address(s.access, point), one.bytes.data(), one.bytes.size());
    });
  }

  void add(const KernelStore& s) const {
    std::map<std::byte*, double> sums;
    for_each_index(extents_, [&](const Sizes& point, int64_t) { sums[address(s.access, point)] += as_double(at(s.expr, point)); });
    HostTensor one = zeros(value(s.expr).type.dtype, Sizes());
    for (const auto& [address, sum] : sums) {
      one.set(0, sum);
      std::memcpy(address, one.bytes.data(), one.bytes.size());
    }
  }

  const Kernel& k_;
  std::vector<std::vector<bool>> uses_;
  void* const* buffers_;
  const int64_t* symbols_;
  std::map<SymbolId, size_t> position_;
  Sizes extents_;
  std::vector<HostTensor> values_;
  bool is_out_of_bounds_ = false;
};

class InterpretedKernel : public CompiledKernel {
 public:
  explicit InterpretedKernel(std::shared_ptr<const Kernel> kernel) : kernel_(std::move(kernel)) {}
  void launch(void* const* buffers, const int64_t* numbers, const RunContext& run) const override {
    Queue::of_thread().push([kernel = kernel_, buffers = std::vector(buffers, buffers + kernel_->buffers.size()),
                             numbers = std::vector(numbers, numbers + kernel_->symbols + kernel_->parameters), run] {
      if (!Launch(*kernel, buffers.data(), numbers.data()).run()) run.errors->set(run.step);
    });
  }

 private:
  std::shared_ptr<const Kernel> kernel_;
};

// ---- contractions ----

class InterpretedContraction : public CompiledContraction {
 public:
  explicit InterpretedContraction(ContractionStep step) : step_(std::move(step)) {}

  void run(const ContractionArgs& args, const RunContext& run) const override {
    Addresses at{{args.operands[0], args.operands[1]}, {args.result}};
    if (step_.bias) at.operands.push_back(args.bias);
    at.operands.insert(at.operands.end(), args.epilogue.begin(), args.epilogue.end());
    at.results.insert(at.results.end(), args.side_results.begin(), args.side_results.end());
    Queue::of_thread().push([this, at = std::move(at), run] { compute_all(at, run.symbols); });
  }

  std::string pick(std::span<const int64_t>) const override { return "reference"; }

 private:
  // In the order in which the graph below takes and gives them.
  struct Addresses {
    std::vector<void*> operands, results;
  };

  void compute_all(const Addresses& at, std::span<const int64_t> symbols) const {
    std::vector<const Operand*> operands{&step_.operands[0], &step_.operands[1]}, results{&step_.result};
    if (step_.bias) operands.push_back(&*step_.bias);
    for (const Epilogue& e : step_.epilogue)
      if (e.operand) operands.push_back(&*e.operand);
    for (const auto& side : step_.side_results) results.push_back(&side.result);
    std::vector<HostTensor> inputs;
    for (size_t i = 0; i < operands.size(); ++i)
      inputs.push_back(read_window(at.operands[i], operands[i]->type.dtype, evaluated<Sizes>(operands[i]->type.shape, symbols),
                                   evaluated<Sizes>(operands[i]->place.strides, symbols)));
    auto outputs = compute(inputs, [&](GraphBuilder& b, const std::vector<Value>& in) { return whole(b, in, symbols); });
    for (size_t i = 0; i < results.size(); ++i)
      write_window(outputs[i], at.results[i], evaluated<Sizes>(results[i]->place.strides, symbols));
  }

  std::vector<Value> whole(GraphBuilder& b, const std::vector<Value>& in, std::span<const int64_t> symbols) const {
    const Operation& o = step_.operation;
    Value y = b.emit(o.op, {in[0], in[1]}, with_constants(o.attrs, symbols));
    size_t next = 2;
    if (step_.bias) y = b.binary(Op::add, y, b.cast(along(b, in[next++], y, o.op == Op::conv ? 1 : y.shape().size() - 1), y.dtype()));
    std::vector<Value> values{y};  // before each operation of the epilogue, and behind the last
    for (const Epilogue& e : step_.epilogue)
      values.push_back(e.operand ? b.binary(e.op, values.back(), b.cast(in[next++], y.dtype())) : b.unary(e.op, values.back()));
    std::vector<Value> out{b.cast(values.back(), step_.result.type.dtype)};
    for (const auto& side : step_.side_results) out.push_back(b.cast(values.at(side.before), side.result.type.dtype));
    return out;
  }

  // One value for each position of a dimension.
  static Value along(GraphBuilder& b, Value vector, Value y, size_t dim) {
    Shape shape(y.shape().size(), SymInt(1));
    shape[dim] = vector.type().numel();
    return b.reshape(vector, shape);
  }

  ContractionStep step_;
};

// ---- routines ----

class InterpretedRoutine : public CompiledRoutine {
 public:
  explicit InterpretedRoutine(const Operation& operation) : op_(operation.op), attrs_(operation.attrs) {}

  void run(const RoutineArgs& args, const RunContext& run) const override {
    Attrs attrs = attrs_;
    if (attrs.contains(Attr::starts)) attrs[Attr::starts] = Shape(args.starts.begin(), args.starts.end());
    if (attrs.contains(Attr::shape)) attrs[Attr::shape] = Shape(args.results[0].sizes.begin(), args.results[0].sizes.end());
    if (op_ == Op::topk) attrs[Attr::k] = SymInt(args.results[0].sizes[static_cast<size_t>(std::get<int64_t>(attrs.at(Attr::dim)))]);
    Queue::of_thread().push([op = op_, attrs = std::move(attrs), operands = owned(args.operands), results = owned(args.results), run] {
      if (!compute_all(op, attrs, operands, results)) run.errors->set(run.step);
    });
  }

 private:
  struct Tensor {
    void* data;
    DType dtype;
    Sizes sizes, strides;
  };
  static std::vector<Tensor> owned(std::span<const RoutineTensor> tensors) {
    std::vector<Tensor> out;
    for (const RoutineTensor& t : tensors)
      out.push_back({t.data, t.dtype, Sizes(t.sizes.begin(), t.sizes.end()), Sizes(t.strides.begin(), t.strides.end())});
    return out;
  }

  // False if an index is out of bounds.
  static bool compute_all(Op op, const Attrs& attrs, const std::vector<Tensor>& operands, const std::vector<Tensor>& results) {
    std::vector<HostTensor> inputs, outputs;
    for (const Tensor& t : operands) inputs.push_back(read_window(t.data, t.dtype, t.sizes, t.strides));
    try {
      outputs = compute(inputs, [&](GraphBuilder& b, const std::vector<Value>& in) { return b.emit_all(op, in, attrs); });
    } catch (const Error&) {  // of the interpreter: an index outside, as all else was checked when the graph was made
      return false;
    }
    for (size_t i = 0; i < outputs.size(); ++i)
      if (results[i].data) write_window(outputs[i], results[i].data, results[i].strides);
    return true;
  }

  Op op_;
  Attrs attrs_;
};

class ReferenceTarget : public Target {
 public:
  std::string name() const override { return "reference"; }
  CompiledKernels compile(std::span<const std::shared_ptr<const Kernel>> kernels, const CompileSettings&) const override {
    CompiledKernels out;
    for (const auto& k : kernels) out.push_back(std::make_shared<InterpretedKernel>(k));
    return out;
  }
  std::string save(const CompiledKernels&) const override { unsupported("the reference target compiles nothing that could be saved"); }
  CompiledKernels load(std::string_view) const override { unsupported("the reference target compiles nothing that could be loaded"); }
  std::string fingerprint() const override { return "reference"; }
  std::shared_ptr<const CompiledContraction> contraction(const ContractionStep& step, const CompileSettings&) const override {
    return std::make_shared<InterpretedContraction>(step);
  }
  std::shared_ptr<const CompiledRoutine> routine(const Operation& o) const override {
    if (kind_of(o.op) != OpKind::routine) return nullptr;
    if (o.op == Op::kth && !o.get<SymInt>(Attr::k).is_constant()) return nullptr;
    return std::make_shared<InterpretedRoutine>(o);
  }
  const Capabilities& capabilities() const override {
    static const Capabilities all = [] {
      Capabilities c = all_capabilities();
      c.row_adder = {DeviceKind::cpu, 2, 4096, 2, 3};
      return c;
    }();
    return all;
  }

  Memory& memory() const override { return ProtectedMemory::get(); }
  void copy(void* to, const void* from, size_t bytes, bool to_host, const RunContext&) const override {
    if (!to_host) {
      std::vector<std::byte> elements(static_cast<const std::byte*>(from), static_cast<const std::byte*>(from) + bytes);
      return Queue::of_thread().push([to, elements = std::move(elements)] { std::memcpy(to, elements.data(), elements.size()); });
    }
    Queue::of_thread().push([to, from, bytes] { std::memcpy(to, from, bytes); });
    Queue::of_thread().finish();
  }
  void wait(const RunContext&) const override { Queue::of_thread().finish(); }
  void drain(const RunContext&) const noexcept override { Queue::of_thread().drop(); }
};

}  // namespace

const Target* reference_target() {
  static const ReferenceTarget target;
  return &target;
}

}  // namespace broach

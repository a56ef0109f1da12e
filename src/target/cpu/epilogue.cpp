#include "target/cpu/epilogue.h"

#include "target/cpu/jit.h"

namespace broach::cpu {

namespace {

using Kind = KernelExpr::Kind;

class EpilogueBuilder {
 public:
  EpilogueBuilder(const ContractionStep& step, std::span<const int64_t> symbols, bool strict) : step_(step), symbols_(symbols) {
    k_.strict = strict;
    for (size_t d = 0; d < step.result.type.shape.size(); ++d)
      k_.axes.push_back({static_cast<SymbolId>(kFirstAxis + d), step.result.type.shape[d].eval(symbols)});
  }

  Kernel build(DType product, const std::vector<int64_t>& from, bool with_bias) {
    int value = load(product, address(from));
    if (with_bias) value = op(Op::add, {value, load(step_.bias->type.dtype, bias_address())});
    for (const Epilogue& e : step_.epilogue) {
      std::vector<int> args{value};
      if (e.operand) args.push_back(load(e.operand->type.dtype, address(strides(*e.operand))));
      value = op(e.op, std::move(args));
    }
    DType stored = step_.result.type.dtype;
    if (stored != DType::f32) value = op(Op::cast, {value}, stored);
    k_.buffers.push_back(stored);
    k_.stores.push_back({{static_cast<int>(k_.buffers.size()) - 1, address(strides(step_.result)), {}}, value});
    return normalize_axes(std::move(k_));
  }

 private:
  std::vector<int64_t> strides(const Operand& o) const {
    std::vector<int64_t> out;
    for (const SymInt& s : o.place.strides) out.push_back(s.eval(symbols_));
    return out;
  }

  SymInt address(const std::vector<int64_t>& strides) const {
    SymInt at(0);
    for (size_t d = 0; d < strides.size(); ++d) at = at + SymInt::symbol(k_.axes[d].id) * SymInt(strides[d]);
    return at;
  }

  // One element a channel or column.
  SymInt bias_address() const {
    size_t along = step_.operation.op == Op::conv ? 1 : k_.axes.size() - 1;
    const auto own = strides(*step_.bias);
    for (size_t d = 0; d < own.size(); ++d)
      if (!(step_.bias->type.shape[d] == SymInt(1))) return SymInt::symbol(k_.axes[along].id) * SymInt(own[d]);
    return 0;
  }

  int op(Op o, std::vector<int> args, DType t = DType::f32) {
    KernelExpr e{.kind = Kind::op, .dtype = t, .op = o, .args = std::move(args), .access = {}, .limit = {}};
    return add(std::move(e));
  }

  int load(DType t, SymInt at) {
    k_.buffers.push_back(t);
    Access from{static_cast<int>(k_.buffers.size()) - 1, std::move(at), {}};
    int loaded = add({.kind = Kind::load, .dtype = t, .args = {}, .access = std::move(from), .limit = {}});
    return t == DType::f32 ? loaded : op(Op::cast, {loaded});
  }

  int add(KernelExpr e) {
    k_.exprs.push_back(std::move(e));
    return static_cast<int>(k_.exprs.size()) - 1;
  }

  const ContractionStep& step_;
  std::span<const int64_t> symbols_;
  Kernel k_;
};

}  // namespace

std::shared_ptr<const CompiledKernel> compile_epilogue(const ContractionStep& step, DType product, const std::vector<int64_t>& from,
                                                       bool with_bias, std::span<const int64_t> symbols, const CompileSettings& settings) {
  auto kernel = std::make_shared<const Kernel>(EpilogueBuilder(step, symbols, settings.strict).build(product, from, with_bias));
  return compile_kernels(std::span(&kernel, 1), settings)[0];
}

}  // namespace broach::cpu

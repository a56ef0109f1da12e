#include "target/cpu/epilogue.h"

#include "target/cpu/jit.h"

namespace broach::cpu {

namespace {

using Kind = KernelExpr::Kind;

class EpilogueBuilder {
 public:
  EpilogueBuilder(const EpilogueForm& form, bool strict) : form_(form) {
    k_.strict = strict;
    for (size_t d = 0; d < form.dims.size(); ++d) k_.axes.push_back({static_cast<SymbolId>(kFirstAxis + d), form.dims[d]});
  }

  Kernel build() {
    int value = load(form_.product);
    if (form_.bias) value = op(Op::add, {value, load(*form_.bias)});
    for (const auto& [o, operand] : form_.operations) {
      std::vector<int> args{value};
      if (operand) args.push_back(load(*operand));
      value = op(o, std::move(args));
    }
    const DType stored = form_.result.dtype;
    if (stored != DType::f32) value = op(Op::cast, {value}, stored);
    k_.buffers.push_back(stored);
    k_.stores.push_back({{static_cast<int>(k_.buffers.size()) - 1, address(form_.result.strides), {}}, value});
    return normalize_axes(std::move(k_));
  }

 private:
  SymInt address(const std::vector<int64_t>& strides) const {
    SymInt at(0);
    for (size_t d = 0; d < strides.size(); ++d) at = at + SymInt::symbol(k_.axes[d].id) * SymInt(strides[d]);
    return at;
  }

  int op(Op o, std::vector<int> args, DType t = DType::f32) {
    KernelExpr e{.kind = Kind::op, .dtype = t, .op = o, .args = std::move(args), .access = {}, .limit = {}};
    return add(std::move(e));
  }

  int load(const EpilogueForm::Side& side) {
    k_.buffers.push_back(side.dtype);
    Access from{static_cast<int>(k_.buffers.size()) - 1, address(side.strides), {}};
    int loaded = add({.kind = Kind::load, .dtype = side.dtype, .args = {}, .access = std::move(from), .limit = {}});
    return side.dtype == DType::f32 ? loaded : op(Op::cast, {loaded});
  }

  int add(KernelExpr e) {
    k_.exprs.push_back(std::move(e));
    return static_cast<int>(k_.exprs.size()) - 1;
  }

  const EpilogueForm& form_;
  Kernel k_;
};

EpilogueForm::Side side_of(const Operand& o, std::span<const int64_t> symbols) {
  return {o.type.dtype, evaluated<std::vector<int64_t>>(o.place.strides, symbols)};
}

// One element a channel or column.
EpilogueForm::Side bias_of(const ContractionStep& step, std::span<const int64_t> symbols) {
  const size_t rank = step.result.type.shape.size(), along = step.operation.op == Op::conv ? 1 : rank - 1;
  const EpilogueForm::Side own = side_of(*step.bias, symbols);
  EpilogueForm::Side out{own.dtype, std::vector<int64_t>(rank)};
  for (size_t d = 0; d < own.strides.size(); ++d)
    if (!(step.bias->type.shape[d] == SymInt(1))) out.strides[along] = own.strides[d];
  return out;
}

}  // namespace

std::shared_ptr<const CompiledKernel> compile_epilogue(const EpilogueForm& form, const CompileSettings& settings) {
  auto kernel = std::make_shared<const Kernel>(EpilogueBuilder(form, settings.strict).build());
  return compile_kernels(std::span(&kernel, 1), settings)[0];
}

std::shared_ptr<const CompiledKernel> compile_epilogue(const ContractionStep& step, DType product, const std::vector<int64_t>& from,
                                                       bool with_bias, std::span<const int64_t> symbols, const CompileSettings& settings) {
  EpilogueForm form{.dims = evaluated<std::vector<int64_t>>(step.result.type.shape, symbols), .product = {product, from}};
  if (with_bias) form.bias = bias_of(step, symbols);
  for (const Epilogue& e : step.epilogue)
    form.operations.push_back({e.op, e.operand ? std::optional(side_of(*e.operand, symbols)) : std::nullopt});
  form.result = side_of(step.result, symbols);
  return compile_epilogue(form, settings);
}

}  // namespace broach::cpu

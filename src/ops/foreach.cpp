// Operations on lists of tensors, as optimisers use them: the elements' operation, once a position.
#include "ops/formula.h"
#include "support/error.h"

namespace broach {

namespace {

// Arguments of the list operation that the elements' operation takes, in order: L list, T tensor, # number.
struct Row {
  const char* names;
  const char* element;
  const char* args;
};

constexpr Row kRows[] = {
    {"_foreach_add.List", "add.Tensor", "LL#"},
    {"_foreach_add.Scalar", "add.Tensor", "L#"},
    {"_foreach_add.Tensor", "add.Tensor", "LT#"},
    {"_foreach_sub.List", "sub.Tensor", "LL#"},
    {"_foreach_sub.Scalar", "sub.Tensor", "L#"},
    {"_foreach_mul.List", "mul.Tensor", "LL"},
    {"_foreach_mul.Scalar", "mul.Tensor", "L#"},
    {"_foreach_mul.Tensor", "mul.Tensor", "LT"},
    {"_foreach_div.List", "div.Tensor", "LL"},
    {"_foreach_div.Scalar", "div.Tensor", "L#"},
    {"_foreach_div.Tensor", "div.Tensor", "LT"},
    {"_foreach_addcmul.Scalar", "addcmul", "LLL#"},
    {"_foreach_addcdiv.Scalar", "addcdiv", "LLL#"},
    {"_foreach_lerp.List", "lerp.Tensor", "LLL"},
    {"_foreach_lerp.Scalar", "lerp.Scalar", "LL#"},
    {"_foreach_pow.List", "pow.Tensor_Tensor", "LL"},
    {"_foreach_pow.Scalar", "pow.Tensor_Scalar", "L#"},
    {"_foreach_pow.ScalarAndTensor", "pow.Scalar", "#L"},
    {"_foreach_maximum.List _foreach_clamp_min.List", "maximum", "LL"},
    {"_foreach_minimum.List _foreach_clamp_max.List", "minimum", "LL"},
    {"_foreach_maximum.Scalar _foreach_clamp_min.Scalar", "clamp_min", "L#"},
    {"_foreach_minimum.Scalar _foreach_clamp_max.Scalar", "clamp_max", "L#"},
    {"_foreach_copy", "copy", "LL"},
    {"_foreach_clone", "clone", "L"},
    {"_foreach_zero", "zero", "L"},
};

constexpr const char* kUnary[] = {
    "abs",   "acos",  "asin", "atan", "ceil",       "cos",   "cosh",  "erf",     "erfc", "exp", "expm1", "floor", "frac", "lgamma", "log",
    "log10", "log1p", "log2", "neg",  "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh",  "sqrt",  "tan",  "tanh",   "trunc",
};

Arg tensor_arg(std::vector<Value>& tensors, Value v) {
  tensors.push_back(v);
  return {Arg::Tensor{static_cast<TensorId>(tensors.size() - 1)}};
}

Arg number_arg(OpCall& c, size_t i) {
  if (c.is_none(i)) return {};
  SymInt n = c.integer(i);
  if (n.is_constant()) return {c.scalar(i)};
  return {n};
}

// Call number `index` of the elements' operation.
std::optional<OpCall> element_call(OpCall& c, std::string_view schema, std::string_view kinds, size_t index) {
  std::vector<Arg> args;
  std::vector<Value> tensors;
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] == '#') {
      args.push_back(c.is_tensor(i) ? tensor_arg(tensors, c.tensor(i)) : number_arg(c, i));
      continue;
    }
    auto v = kinds[i] == 'L' ? c.tensors(i).at(index) : c.maybe_tensor(i);
    if (!v) return std::nullopt;
    args.push_back(tensor_arg(tensors, *v));
  }
  return OpCall(c.b, schema, std::move(args), std::move(tensors), {c.result(index)});
}

Results for_each(OpCall& c, const std::string& schema, const Lowering& lower, std::string_view kinds) {
  std::vector<Value> out;
  for (size_t i = 0; i < c.results().size(); ++i) {
    auto call = element_call(c, schema, kinds, i);
    auto result = call ? lower(*call) : std::nullopt;
    if (!result) return std::nullopt;
    out.push_back(result->at(0));
  }
  return out;
}

void add_list(OpTable& t, const std::string& names, const std::string& element, const char* kinds) {
  std::string schema = "aten::" + element;
  t.add(names, [schema, kinds](OpCall& c) {
    const OpEntry* entry = OpTable::get().find(schema);
    check(entry, schema, " has no entry");
    return for_each(c, schema, entry->lower, kinds);
  });
}

}  // namespace

void add_foreach_ops(OpTable& t) {
  for (const Row& row : kRows) add_list(t, row.names, row.element, row.args);
  for (const char* name : kUnary) add_list(t, std::string("_foreach_") + name, name, "L");
}

}  // namespace broach

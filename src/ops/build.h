// Small pieces of graph that several op families build.
#pragma once

#include <array>

#include "ops/lower.h"

namespace broach {

// A size as an i64 value without dimensions.
Value size_value(GraphBuilder& b, const SymInt& size);
// 0, 1, .., n - 1.
Value positions(GraphBuilder& b, const SymInt& n, DType dtype = DType::i64);
// A vector laid along dimension `dim` of a tensor of rank `rank`; the other dimensions are 1.
Value along(GraphBuilder& b, Value vector, int64_t dim, int rank);
// x op number, the number in x's element type.
Value with_number(GraphBuilder& b, Op op, Value x, Scalar number);
// The same tensor with its sizes written as in `shape`, equal to its own by their form or by a guard that this records.
Value with_sizes(GraphBuilder& b, Value x, const Shape& shape);
// `expand` where a dimension equals the wanted one, or is 1, by a guard and not by its form.
Value broadcast_to(GraphBuilder& b, Value x, const Shape& shape);
// `size` elements of dimension `dim` from `start`, every `step`th.
Value narrow(GraphBuilder& b, Value x, int64_t dim, SymInt start, SymInt size, int64_t step = 1);
Value pad(GraphBuilder& b, Value x, Shape low, Shape high, Scalar value);
Value transpose(GraphBuilder& b, Value x, int64_t d0, int64_t d1);
Value unsqueeze(GraphBuilder& b, Value x, int64_t dim);
Value take(GraphBuilder& b, Value x, Value index, int64_t dim);
Value pick(GraphBuilder& b, Value x, Value index, int64_t dim);  // the leading dimensions of the positions are those of x before `dim`
// The result of a lowering that gives one tensor; nothing if eager's result had another element type or rank.
std::optional<std::vector<Value>> as_result(const OpCall& c, Value v);

// A lowering with one result; a null value says that this call has none.
using SingleLowering = std::function<Value(OpCall&)>;
// Entries for real element types that are computed in: a call with another tensor among its single tensors or results has no lowering.
void add_real(OpTable& t, std::string_view names, Lowering lowering);
void add_single(OpTable& t, std::string_view names, SingleLowering lowering);
// Entries that only move elements, complex ones too.
void add_moving(OpTable& t, std::string_view names, Lowering lowering);
void add_single_moving(OpTable& t, std::string_view names, SingleLowering lowering);

// A size as a number of an arithmetic element type, without dimensions.
Value size_number(GraphBuilder& b, const SymInt& size, DType dtype);
// The same elements in `shape`; sizes that are equal by their hints only are fixed by guards. Null if they are not equal.
Value reshape_guarded(GraphBuilder& b, Value x, Shape shape);
// Without dimension `dim`, which has size 1.
Value squeeze(GraphBuilder& b, Value x, int64_t dim);
// The elements x[.., i - min(offset, 0), .., i + max(offset, 0), ..] of dimensions d0 and d1, as the last dimension; a view.
Value diagonal(GraphBuilder& b, Value x, int64_t offset, int64_t d0, int64_t d1);
// torch.matmul: vectors stand for a row or a column, leading dimensions broadcast.
Value matmul(GraphBuilder& b, Value x, Value y);
// Joined along `dim`; operands have one element type.
Value concat(GraphBuilder& b, std::vector<Value> parts, int64_t dim);
// x - log(sum(exp(x))) over `dims`, in x's element type.
Value log_softmax(GraphBuilder& b, Value x, const std::vector<int64_t>& dims);

}  // namespace broach

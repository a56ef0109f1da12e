#include "trace/memory.h"

#include <algorithm>

#include "support/error.h"

namespace broach {

void StorageValues::add_input(int index, TensorId id) {
  StorageState& s = storage(id);
  position_of_input_.emplace(id, index);
  state(id).value = b_.input(info(id).type, info(id).strides);
  if (s.root != kNoTensor) {
    aliased_.insert(info(id).storage);
    state(id).version = 0;
    return;
  }
  s.root = id;
  s.input = index;
  state(id).version = 0;
}

Value StorageValues::value(TensorId id) {
  TensorState& s = state(id);
  int now = storage(id).version;
  check(storage(id).root != kNoTensor, "functionalise: tensor ", id, " is read before it exists");
  if (s.version == now) return s.value;
  s.value = s.parent == kNoTensor ? joined(id) : shown(id);
  s.version = now;
  return s.value;
}

Value StorageValues::joined(TensorId root) {
  auto& pieces = storage(root).pieces;
  check(pieces.has_value(), "functionalise: a root is out of date");
  Value whole = pieces->joined(b_);
  pieces.reset();
  return whole;
}

Value StorageValues::shown(TensorId id) {
  const TensorState& s = state(id);
  const auto& pieces = storage(id).pieces;
  auto slab = pieces ? slab_of(id) : std::nullopt;
  auto window = slab && slab->dim == pieces->dim() ? pieces->window(b_, slab->start, slab->length) : std::nullopt;
  Value v = window ? *window : value(s.parent);
  for (size_t i = window ? 1 : 0; i < s.steps.size(); ++i) v = shown_by(b_, s.steps[i], v);
  return v;
}

// The elements of its root that a tensor shows, if these are some of one dimension, perhaps in another shape.
std::optional<Slab> StorageValues::slab_of(TensorId id) const {
  const TensorState& s = tensors_[static_cast<size_t>(id)];
  if (s.parent == kNoTensor || tensors_[static_cast<size_t>(s.parent)].parent != kNoTensor || s.steps.empty()) return std::nullopt;
  auto is_reshape = [](const ViewStep& step) { return !step.view && step.op == Op::reshape; };
  if (s.steps[0].view || s.steps[0].op != Op::slice || !std::all_of(s.steps.begin() + 1, s.steps.end(), is_reshape)) return std::nullopt;
  const auto &starts = std::get<Shape>(s.steps[0].attrs.at(Attr::starts)), &shape = std::get<Shape>(s.steps[0].attrs.at(Attr::shape)),
             &whole = info(s.parent).type.shape;
  std::optional<Slab> slab;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (std::get<std::vector<int64_t>>(s.steps[0].attrs.at(Attr::steps))[d] != 1) return std::nullopt;
    if (shape[d] == whole[d] && starts[d] == SymInt(0)) continue;
    if (slab || !shape[d].is_constant() || !starts[d].is_constant() || !whole[d].is_constant()) return std::nullopt;
    slab = {static_cast<int64_t>(d), starts[d].constant(), shape[d].constant()};
  }
  return slab;
}

void StorageValues::write(TensorId id, Value v) {
  if (is_aliased(id)) unsupported("an input that shares its memory with another is written");
  TensorState& s = state(id);
  if (auto slab = storage(id).input < 0 ? slab_of(id) : std::nullopt) {
    write_slab(id, *slab, v);
  } else if (s.parent != kNoTensor) {
    std::vector<Value> along{value(s.parent)};
    for (const ViewStep& step : s.steps) along.push_back(shown_by(b_, step, along.back()));
    Value carried = v;
    for (size_t i = s.steps.size(); i-- > 0;) carried = replaced_through(b_, s.steps[i], along[i], carried);
    write(s.parent, carried);
  } else {
    if (storage(id).input >= 0 && may_show_twice(info(id))) unsupported("a write to an input that shows elements twice");
    storage(id).pieces.reset();
    ++storage(id).version;
  }
  s.value = v;
  s.version = storage(id).version;
}

// Whether two of its elements may lie in one place, as those of an expanded tensor do: what is written to one is then read in the other.
bool StorageValues::may_show_twice(const TraceTensor& t) const {
  std::vector<std::pair<int64_t, int64_t>> dims;  // strides and sizes
  for (size_t d = 0; d < t.type.shape.size(); ++d) {
    const int64_t size = b_.symbols().hint(t.type.shape[d]);
    if (size == 0) return false;
    if (size > 1) dims.emplace_back(b_.symbols().hint(t.strides[d]), size);
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;  // the last place of those seen so far
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

void StorageValues::write_slab(TensorId id, const Slab& slab, Value v) {
  StorageState& memory = storage(id);
  if (!memory.pieces || memory.pieces->dim() != slab.dim) memory.pieces.emplace(value(memory.root), slab.dim);
  memory.pieces->replace(slab.start, b_.reshape(v, std::get<Shape>(state(id).steps[0].attrs.at(Attr::shape))));
  ++memory.version;
}

void StorageValues::define(TensorId id, Value v) {
  StorageState& s = storage(id);
  check(s.root == kNoTensor, "functionalise: tensor ", id, " is made in memory that another has");
  s.root = id;
  state(id).value = v;
  state(id).version = s.version;
}

int StorageValues::position_of_input(TensorId id) const {
  auto it = position_of_input_.find(id);
  return it == position_of_input_.end() ? -1 : it->second;
}

void StorageValues::must_be_written(TensorId id) {
  bool none = std::any_of(info(id).type.shape.begin(), info(id).type.shape.end(), [](const SymInt& n) { return n == SymInt(0); });
  if (!none && storage(id).version == 0 && unwritten_.contains(info(id).storage))
    unsupported("memory is read that no recorded operation has written");
}

}  // namespace broach

// The tensors of a trace and the memory behind them: the value that each shows at every version of its storage.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "trace/pieces.h"
#include "trace/trace.h"
#include "trace/view_steps.h"

namespace broach {

struct TensorState {
  TensorId parent = kNoTensor;  // none: the root of its storage
  std::vector<ViewStep> steps;  // from the parent
  Value value;                  // at `version` of the storage
  int version = -1;
};

struct StorageState {
  TensorId root = kNoTensor;
  int version = 0;
  int input = -1;
  std::optional<Pieces> pieces = {};  // the root's elements, while its value is out of date
};

class StorageValues {
 public:
  StorageValues(const Trace& trace, GraphBuilder& b) : t_(trace), b_(b), tensors_(trace.tensors.size()) {}

  const TraceTensor& info(TensorId id) const { return t_.tensors[static_cast<size_t>(id)]; }
  TensorState& state(TensorId id) { return tensors_[static_cast<size_t>(id)]; }
  StorageState& storage(TensorId id) { return storages_[info(id).storage]; }

  void add_input(int index, TensorId id);
  // The first of the inputs that are this very tensor, or -1.
  int position_of_input(TensorId id) const;
  // Whether several inputs are windows of the tensor's storage.
  bool is_aliased(TensorId id) const { return aliased_.contains(info(id).storage); }
  // Makes the tensor the root of its storage.
  void define(TensorId id, Value v);

  Value value(TensorId id);
  void write(TensorId id, Value v);

  // A kernel of the host's library may make an empty tensor and write it through a raw pointer, which a trace does not show.
  // Reading what seems unwritten is the sign of it.
  void mark_unwritten(TensorId id) { unwritten_.insert(info(id).storage); }
  void must_be_written(TensorId id);

 private:
  Value joined(TensorId root);
  Value shown(TensorId id);
  std::optional<Slab> slab_of(TensorId id) const;
  void write_slab(TensorId id, const Slab& slab, Value v);
  bool may_show_twice(const TraceTensor& t) const;

  const Trace& t_;
  GraphBuilder& b_;
  std::vector<TensorState> tensors_;
  std::map<int32_t, StorageState> storages_;
  std::set<int32_t> unwritten_;                // storages made by `empty`
  std::set<int32_t> aliased_;                  // storages of which several inputs are windows
  std::map<TensorId, int> position_of_input_;  // the first of each
};

}  // namespace broach

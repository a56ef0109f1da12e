#include "trace/separate_inputs.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace broach {

namespace {

// Bytes of a storage, from the first to the one behind the last.
struct Reach {
  int64_t begin = 0, end = 0;
  bool is_within(const Reach& other) const { return other.begin <= begin && end <= other.end; }
};

// Nothing where it is not known.
std::optional<Reach> reach_of(const TraceTensor& t) {
  const auto offset = t.offset.maybe_constant();
  if (!offset || t.type.dtype == DType::opaque) return std::nullopt;
  const int64_t bytes = size_of(t.type.dtype);
  int64_t last = *offset;
  bool is_empty = false;
  for (size_t d = 0; d < t.type.shape.size(); ++d) {
    const auto size = t.type.shape[d].maybe_constant(), stride = t.strides[d].maybe_constant();
    if (!size || !stride || *stride < 0) return std::nullopt;
    is_empty = is_empty || *size == 0;
    last += (*size - 1) * *stride;
  }
  return Reach{*offset * bytes, is_empty ? *offset * bytes : (last + 1) * bytes};
}

// Those that meet are one.
std::vector<Reach> joined(std::vector<Reach> all) {
  std::ranges::sort(all, {}, &Reach::begin);
  std::vector<Reach> out;
  for (const Reach& r : all)
    if (!out.empty() && r.begin < out.back().end) out.back().end = std::max(out.back().end, r.end);
    else out.push_back(r);
  return out;
}

class Separation {
 public:
  explicit Separation(const Trace& trace) : t_(trace) {
    for (const TraceTensor& t : trace.tensors) next_ = std::max(next_, t.storage + 1);
  }

  std::optional<Trace> run() {
    std::map<int32_t, std::set<TensorId>> inputs;
    for (TensorId id : t_.inputs) inputs[info(id).storage].insert(id);
    std::set<int32_t> written;
    for (const TraceOp& op : t_.ops)
      for (TensorId id : op.mutated) written.insert(info(id).storage);
    std::optional<Trace> out;
    for (const auto& [storage, windows] : inputs) {
      if (windows.size() < 2 || !written.contains(storage)) continue;
      const std::map<TensorId, size_t> part = parts(storage, windows);
      if (part.empty()) continue;
      if (!out) out = t_;
      for (const auto& [id, p] : part)
        if (p > 0) out->tensors[static_cast<size_t>(id)].storage = next_ + static_cast<int32_t>(p);
      next_ += static_cast<int32_t>(part.size());
    }
    return out;
  }

 private:
  const TraceTensor& info(TensorId id) const { return t_.tensors[static_cast<size_t>(id)]; }

  // Of each tensor in this storage, the number of the part that it lies in, in the order of the inputs; empty where there is but one.
  std::map<TensorId, size_t> parts(int32_t storage, const std::set<TensorId>& windows) const {
    std::vector<Reach> all;
    for (TensorId id : windows) {
      const auto reach = reach_of(info(id));
      if (!reach) return {};
      all.push_back(*reach);
    }
    const std::vector<Reach> apart = joined(all);
    if (apart.size() < 2) return {};
    auto place = [&](const Reach& r) {
      return std::ranges::find_if(apart, [&](const Reach& a) { return r.is_within(a); }) - apart.begin();
    };
    std::map<std::ptrdiff_t, size_t> numbers;
    for (const Reach& r : all) numbers.emplace(place(r), numbers.size());
    std::map<TensorId, size_t> out;
    for (size_t i = 0; i < t_.tensors.size(); ++i) {
      if (t_.tensors[i].storage != storage) continue;
      const auto reach = reach_of(t_.tensors[i]);
      const auto number = reach ? numbers.find(place(*reach)) : numbers.end();
      if (number == numbers.end()) return {};
      out.emplace(static_cast<TensorId>(i), number->second);
    }
    return out;
  }

  const Trace& t_;
  int32_t next_ = 0;  // no storage has this number, or a larger one
};

}  // namespace

std::optional<Trace> with_separate_inputs(const Trace& trace) { return Separation(trace).run(); }

}  // namespace broach

#include "trace/mutations.h"

#include <algorithm>
#include <map>
#include <utility>

namespace broach {

namespace {

int32_t storage_of(const Trace& t, TensorId id) { return t.tensors[static_cast<size_t>(id)].storage; }

// Operations whose arguments are those of another that gives the operands' new elements as its last results.
std::string form_by_name(const std::string& schema) {
  static const std::pair<const char*, const char*> forms[] = {
      {"aten::native_batch_norm", "aten::_native_batch_norm_legit_functional"},
      {"aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_functional"},
      {"aten::_batch_norm_with_update", "aten::_batch_norm_with_update_functional"},
      {"aten::rrelu_with_noise", "aten::rrelu_with_noise_functional"},
  };
  for (auto [name, form] : forms)
    if (schema == name) return form;
  return "";
}

// An operation on lists that writes the first one's tensors, each by what is at its own position in the others: the one that gives
// them as results. Empty if one of them might see what was written to another.
std::string form_of_list(const Trace& t, const TraceOp& op) {
  bool is_out = false;
  const auto names = functional_names(op.schema, &is_out);
  if (is_out || names.empty() || !op.results.empty() || op.args.empty() || !std::holds_alternative<Arg::Tensors>(op.args[0].value))
    return "";
  std::map<int32_t, size_t> written;  // storages with the position in the list
  for (size_t i = 0; i < op.mutated.size(); ++i)
    if (!written.emplace(storage_of(t, op.mutated[i]), i).second) return "";
  for (const Arg& a : op.args) {
    const auto* many = std::get_if<Arg::Tensors>(&a.value);
    bool apart = true;
    size_t position = 0;
    for_each_tensor({a}, [&](TensorId id) {
      auto it = written.find(storage_of(t, id));
      apart = apart && (it == written.end() || (many && it->second == position && id == op.mutated[position]));
      ++position;
    });
    if (!apart) return "";
  }
  return names[0];
}

// A window as it was in the recorded call, in bytes: where it begins, and by dimension the number of steps and their length. Dimensions of
// one element are left out.
struct Window {
  int64_t begin, element, extent = 0;  // from the begin of its first element to that of its last
  std::vector<std::pair<int64_t, int64_t>> steps;
  bool is_empty = false;

  Window(const TraceTensor& t, const Symbols& symbols)
      : begin(symbols.hint(t.offset) * static_cast<int64_t>(size_of(t.type.dtype))), element(static_cast<int64_t>(size_of(t.type.dtype))) {
    for (size_t d = 0; d < t.strides.size(); ++d) {
      const int64_t size = symbols.hint(t.type.shape[d]), step = symbols.hint(t.strides[d]) * element;
      is_empty |= size == 0;
      if (size > 1 && step != 0) steps.emplace_back(size, step);
      extent += (size - 1) * step;
    }
  }
  int64_t end() const { return begin + extent + element; }
  template <class F>
  void for_each_element(const F& f, size_t dim = 0, int64_t at = 0) const {
    if (dim == steps.size()) return f(begin + at);
    for (int64_t i = 0; i < steps[dim].first; ++i) for_each_element(f, dim + 1, at + i * steps[dim].second);
  }
  int64_t elements() const {
    int64_t out = 1;
    for (auto [size, step] : steps) out *= size;
    return out;
  }
};

// Whether both lie in rows of this many bytes, each in other columns.
bool lie_in_other_columns(const Window& a, const Window& b, int64_t row) {
  auto columns = [row](const Window& w) {
    int64_t width = w.element;
    for (auto [size, step] : w.steps)
      if (step % row != 0) width += (size - 1) * step;
    const int64_t first = w.begin % row;
    return std::pair(first, first + width);
  };
  const auto [a_first, a_end] = columns(a);
  const auto [b_first, b_end] = columns(b);
  return a_end <= row && b_end <= row && (a_end <= b_first || b_end <= a_first);
}

// Whether the windows of one storage have an element in common, or may have one: what is large is not counted out.
bool may_meet(const Window& a, const Window& b) {
  constexpr int64_t kMany = int64_t{1} << 22;
  if (a.is_empty || b.is_empty || a.end() <= b.begin || b.end() <= a.begin) return false;
  if (a.element != b.element) return true;
  for (const Window* w : {&a, &b})
    for (auto [size, step] : w->steps)
      if (lie_in_other_columns(a, b, step)) return false;
  const int64_t first = std::min(a.begin, b.begin), bytes = std::max(a.end(), b.end()) - first;
  if (std::max({a.elements(), b.elements(), bytes}) > kMany) return true;
  std::vector<bool> is_written(static_cast<size_t>(bytes));
  a.for_each_element([&](int64_t at) { is_written[static_cast<size_t>(at - first)] = true; });
  bool meet = false;
  b.for_each_element([&](int64_t at) { meet |= is_written[static_cast<size_t>(at - first)]; });
  return meet;
}

}  // namespace

std::vector<std::string> functional_names(const std::string& schema, bool* is_out) {
  size_t dot = schema.find('.');
  std::string base = schema.substr(0, dot), overload = dot == std::string::npos ? "" : schema.substr(dot + 1);
  *is_out = overload == "out" || overload.ends_with("_out");
  if (*is_out) {
    if (overload == "out") return {base, base + ".Tensor", base + ".default"};
    return {base + "." + overload.substr(0, overload.size() - 4)};
  }
  if (!base.ends_with('_') || base.ends_with("__")) return {};
  return {base.substr(0, base.size() - 1) + (overload.empty() ? "" : "." + overload)};
}

std::string form_with_results(const Trace& t, const TraceOp& op) {
  return op.schema.starts_with("aten::_foreach_") ? form_of_list(t, op) : form_by_name(op.schema);
}

bool reads_its_own_writes(const Trace& t, const TraceOp& op) {
  if (op.mutated.size() != 1) return false;
  const TensorId target = op.mutated[0];
  const TraceTensor& written = t.tensors[static_cast<size_t>(target)];
  bool meet = false;
  for_each_tensor(op.args, [&](TensorId id) {
    const TraceTensor& read = t.tensors[static_cast<size_t>(id)];
    if (id == target || read.storage != written.storage) return;
    const bool is_same = read.type.shape == written.type.shape && read.strides == written.strides && read.offset == written.offset;
    meet |= !is_same && may_meet(Window(written, *t.symbols), Window(read, *t.symbols));
  });
  if (op.schema == "aten::masked_scatter_")
    for_each_tensor({op.args.at(1), op.args.at(2)}, [&](TensorId id) { meet |= storage_of(t, id) == written.storage; });
  return meet;
}

bool writes_meet(const Trace& t, const TraceOp& op) {
  if (op.mutated.size() < 2) return false;
  std::map<int32_t, TensorId> written;
  bool meet = false;
  for (TensorId id : op.mutated) meet |= !written.emplace(storage_of(t, id), id).second;
  for_each_tensor(op.args, [&](TensorId id) {
    auto it = written.find(storage_of(t, id));
    meet |= it != written.end() && it->second != id;
  });
  return meet;
}

}  // namespace broach

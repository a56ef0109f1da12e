#include "trace/mutations.h"

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
  if (op.schema != "aten::masked_scatter_") return false;
  bool own = false;
  for_each_tensor({op.args.at(1), op.args.at(2)}, [&](TensorId id) { own |= storage_of(t, id) == storage_of(t, op.mutated.at(0)); });
  return own;
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

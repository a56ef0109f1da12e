// What compiles gradients, for each set of them that is asked for.
#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "externs.h"
#include "gradients.h"
#include "support/bug.h"

namespace broach {

std::shared_ptr<const BackwardVariant> Backward::variant(const Key& key) const {
  std::lock_guard lock(mutex_);
  auto& known = variants_[key];
  if (known) return known;
  const auto& [wanted, given, in_parts] = key;
  auto v = std::make_shared<BackwardVariant>();
  try {
    v->code = compile_backward(*compiled_, wanted, given, in_parts ? stage_parts_ : memory_parts_, targets_, make_extern, options_);
  } catch (const Error& e) {  // as for the program itself: eager has another way
    v->failure = e.what();
    report_bug("the compilation of gradients", v->failure, "the program is run again for them");
    return known = std::move(v);
  }
  const Module& m = v->code.module;
  v->last_read.assign(m.slots.size(), -1);
  v->slots.resize(stage().gives.size());
  for (size_t i = 0; i < m.outputs.size(); ++i) v->slots[v->code.outputs[i]] = m.outputs[i];
  for (size_t part = 0; part < m.stages.size(); ++part) {
    std::vector<size_t> gives = m.stages[part].gives;
    for (size_t& slot : gives) slot -= m.inputs;
    const Graph& graph = *m.stages[part].graph;
    const std::vector<int> uses = graph.use_counts();
    for (size_t i = 0; i < graph.inputs().size(); ++i)
      if (uses[graph.inputs()[i].node->id] > 0) v->last_read[m.stages[part].takes[i]] = static_cast<ptrdiff_t>(part);
    v->runners.emplace_back(v->code.executables[part], m.stages[part].takes, std::move(gives), std::vector<int>(), true);
  }
  for (size_t slot : m.outputs)
    if (!in_parts && slot >= m.inputs) v->last_read[slot] = static_cast<ptrdiff_t>(m.stages.size());  // by whoever is given it
  return known = std::move(v);
}

std::vector<CompiledBackward> Backward::compiled() const {
  std::lock_guard lock(mutex_);
  std::vector<CompiledBackward> out;
  for (const auto& [key, v] : variants_)
    if (v && v->failure.empty()) out.push_back(v->code);
  return out;
}

}  // namespace broach

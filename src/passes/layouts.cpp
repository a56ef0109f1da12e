#include "passes/layouts.h"

namespace broach {

namespace {

bool is_joined(Op op) { return op == Op::cat || op == Op::pad; }

class Chooser {
 public:
  Chooser(const Graph& graph, const std::vector<Shape>& input_strides, const std::vector<OutputRequest>& requests,
          const Epilogues& epilogues, const std::vector<int>& in_place, const std::vector<bool>& channels_last)
      : graph_(graph),
        input_strides_(input_strides),
        requests_(requests),
        epilogues_(epilogues),
        in_place_(in_place),
        channels_last_(channels_last) {}

  Layouts run() {
    find_outputs();
    share_outputs();
    out_.strides.resize(graph_.nodes().size());
    for (const Node& n : graph_.nodes())
      for (size_t i = 0; i < n.results.size(); ++i) out_.strides[n.id].push_back(requested(n, i));
    return std::move(out_);
  }

 private:
  void find_outputs() {
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const Value& v = graph_.outputs()[i];
      if (v.node->op != Op::extern_call) out_.outputs[{v.node->id, v.index}] = static_cast<int>(i);
    }
  }

  // An output that is a product with its dimensions regrouped: the product is written where the output lies.
  void share_outputs() {
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const Node& n = *graph_.outputs()[i].node;
      auto own = out_.outputs.find({n.id, 0});
      if (n.op != Op::reshape || own == out_.outputs.end() || requests_[i].into_input >= 0) continue;
      const Node& base = *n.inputs[0].node;
      auto product = epilogues_.stored_as.find(base.id);
      if (product == epilogues_.stored_as.end() || product->second->op != Op::dot || out_.outputs.contains({base.id, 0})) continue;
      const Shape& strides = requests_[i].strides;
      if (!strides.empty() && !(strides == contiguous_strides(n.results[0].shape))) continue;
      out_.outputs.erase(own);
      out_.outputs[{base.id, 0}] = static_cast<int>(i);
      out_.shared[n.id] = &base;
    }
  }

  Shape requested(const Node& n, size_t i) const {
    auto it = out_.outputs.find({n.id, static_cast<uint32_t>(i)});
    if (it != out_.outputs.end()) {
      const OutputRequest& r = requests_[static_cast<size_t>(it->second)];
      if (graph_.outputs()[static_cast<size_t>(it->second)].node != &n) return contiguous_strides(n.results[i].shape);
      if (r.into_input >= 0) return input_strides_[static_cast<size_t>(r.into_input)];
      if (!r.strides.empty()) return r.strides;
    }
    return chosen(n, i);
  }

  Shape chosen(const Node& n, size_t i) const {
    const Shape& shape = n.results[i].shape;
    if (n.op == Op::input) return input_strides_[static_cast<size_t>(n.integer(Attr::index))];
    if (in_place_[n.id] >= 0) return input_strides_[static_cast<size_t>(in_place_[n.id])];
    if (n.op == Op::extern_call) {
      const auto& strides = n.call().result_strides;
      return i < strides.size() && strides[i].size() == shape.size() ? strides[i] : contiguous_strides(shape);
    }
    // Heads beside each other, as the projection that follows reads them.
    if (n.op == Op::attention && i == 0) return strides_in_order(shape, {0, 2, 1, 3});
    if (!channels_last_.empty() && channels_last_[n.id] && n.op != Op::dot && shape.size() >= 3) return channels_last_strides(shape);
    auto it = epilogues_.stored_as.find(n.id);
    if (it != epilogues_.stored_as.end() && it->second != &n) return out_.strides[it->second->id][0];
    return lies_as_operands(n, shape) ? channels_last_strides(shape) : contiguous_strides(shape);
  }

  bool is_channels_last_value(const Value& v) const { return is_channels_last(v.shape(), out_.strides[v.node->id][v.index]); }

  // Whether what it is computed from has its channels last.
  bool lies_as_operands(const Node& n, const Shape& shape) const {
    if (is_elementwise(n.op)) {
      for (const Value& v : n.inputs)
        if (v.shape() == shape && is_channels_last_value(v)) return true;
      return false;
    }
    if (is_joined(n.op)) return is_channels_last_value(n.inputs[0]);
    if (!is_view(n.op)) return false;
    // As a window this keeps the operand's order; stored, it is contiguous, which the users of the layout must not confuse.
    auto w = window_of_view(n, {nullptr, 0, out_.strides[n.inputs[0].node->id][n.inputs[0].index]});
    return w && is_channels_last(shape, w->strides);
  }

  const Graph& graph_;
  const std::vector<Shape>& input_strides_;
  const std::vector<OutputRequest>& requests_;
  const Epilogues& epilogues_;
  const std::vector<int>& in_place_;
  const std::vector<bool>& channels_last_;
  Layouts out_;
};

}  // namespace

std::vector<bool> find_channels_last(const Graph& graph, const Epilogues& epilogues, const Capabilities& capabilities) {
  std::vector<bool> out(graph.nodes().size());
  auto wish = [&](const Value& v) { out[v.node->id] = out[v.node->id] || v.rank() >= 3; };
  auto wants = [&](const Node& n) {
    const ContractionAbility* can = kind_of(n.op) == OpKind::heavy ? capabilities.contraction(n.op, n.results[0].dtype) : nullptr;
    return can && can->channels_last;
  };
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    const Node& n = graph.nodes()[i];
    if (wants(n)) {
      wish(n.inputs[0]);
      out[i] = true;
    }
    if (auto it = epilogues.stored_as.find(n.id); it != epilogues.stored_as.end() && wants(*it->second)) out[i] = true;
    if (out[i] && (is_elementwise(n.op) || is_joined(n.op)))
      for (const Value& v : n.inputs) wish(v);
  }
  return out;
}

Layouts choose_layouts(const Graph& graph, const std::vector<Shape>& input_strides, const std::vector<OutputRequest>& requests,
                       const Epilogues& epilogues, const std::vector<int>& in_place, const std::vector<bool>& channels_last) {
  return Chooser(graph, input_strides, requests, epilogues, in_place, channels_last).run();
}

}  // namespace broach

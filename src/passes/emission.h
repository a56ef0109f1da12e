// Nodes of a graph in another one that is made of it.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace broach {

// How a node names the device that it is to lie on.
inline Attrs named(const Device& device) {
  return {{Attr::device_kind, static_cast<int64_t>(device.kind)}, {Attr::index, int64_t{device.index}}};
}

struct Emission {
  explicit Emission(const Graph& graph) : b(graph), now(graph.nodes().size()) {}
  GraphBuilder b;
  std::vector<std::vector<Value>> now;  // by node id

  bool has(const Value& v) const { return v.index < now[v.node->id].size() && now[v.node->id][v.index]; }
  Value of(const Value& v) const { return now[v.node->id].at(v.index); }
  std::vector<Value> of(const std::vector<Value>& values) const {
    std::vector<Value> out;
    for (const Value& v : values) out.push_back(of(v));
    return out;
  }
  void set(const Value& v, Value here) {
    now[v.node->id].resize(v.node->results.size());
    now[v.node->id][v.index] = here;
  }
  // A value that the other graph is given.
  void input(const Value& v, Shape strides) { set(v, b.input(v.type(), std::move(strides))); }
  void emit(const Node& n) {
    b.set_line_index(n.line);
    now[n.id] = b.emit_all(n.op, of(n.inputs), n.attrs);
  }
};

}  // namespace broach

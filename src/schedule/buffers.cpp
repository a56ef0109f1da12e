#include "schedule/decisions.h"

namespace broach {

namespace {

class BufferMaker {
 public:
  explicit BufferMaker(const Decisions& d) : d_(d) { m_.places.resize(d.graph.nodes().size()); }

  Buffers run() {
    for (const Node& n : d_.graph.nodes())
      if (d_.groups.in_memory[n.id] || d_.relays.contains(n.id))
        for (size_t i = 0; i < n.results.size(); ++i) m_.places[n.id].push_back({id_of(buffer(n, i)), 0, d_.strides[n.id][i]});
    return std::move(m_);
  }

 private:
  Buffer buffer(const Node& n, size_t i) const {
    const Shape& strides = d_.strides[n.id][i];
    Buffer b{Buffer::Kind::arena, -1, n.results[i], strides, extent_of(n.results[i].shape, strides)};
    if (n.op == Op::input) b.kind = Buffer::Kind::input, b.index = static_cast<int>(n.integer(Attr::index));
    else if (d_.in_place[n.id] >= 0) b.kind = Buffer::Kind::input, b.index = d_.in_place[n.id], b.version = d_.version_of(n);
    else if (n.op == Op::extern_call) b.kind = Buffer::Kind::external;
    else if (auto it = d_.outputs.find({n.id, static_cast<uint32_t>(i)}); it != d_.outputs.end()) place_output(b, n, it->second);
    return b;
  }

  void place_output(Buffer& b, const Node& n, int output) const {
    const int into = d_.graph.requests()[static_cast<size_t>(output)].into_input;
    b.kind = into >= 0 ? Buffer::Kind::input : Buffer::Kind::output;
    b.index = into >= 0 ? into : output;
    const Value& out = d_.graph.outputs()[static_cast<size_t>(output)];
    if (out.node != &n) b.type = out.type(), b.strides = d_.strides[out.node->id][out.index];  // a product, with its dimensions regrouped
  }

  // Inputs have one buffer however many values lie in them, one after the other if they are written in place.
  int id_of(Buffer b) {
    const auto next = static_cast<int>(m_.buffers.size());
    if (b.kind == Buffer::Kind::input) {
      auto [it, fresh] = m_.inputs.emplace(std::pair(b.index, b.version), next);
      if (!fresh) return it->second;
    }
    m_.buffers.push_back(std::move(b));
    return next;
  }

  const Decisions& d_;
  Buffers m_;
};

}  // namespace

Buffers place_buffers(const Decisions& d) { return BufferMaker(d).run(); }

}  // namespace broach

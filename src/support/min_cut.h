// The cheapest set of edges whose removal parts a source from a sink.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace broach {

// By Dinic's algorithm: Y. Dinitz, "Algorithm for solution of a problem of maximum flow in a network with power estimation", 1970.
class FlowNetwork {
 public:
  static constexpr int64_t kUnlimited = int64_t{1} << 60;

  explicit FlowNetwork(size_t vertices) : edges_of_(vertices) {}
  size_t add_vertex() { return edges_of_.emplace_back(), edges_of_.size() - 1; }
  // `capacity` >= 0: what it costs to cut it; kUnlimited: it cannot be cut.
  void connect(size_t from, size_t to, int64_t capacity);
  // By vertex: whether it is on the source's side of a cheapest cut. Of several such cuts the one nearest to the sink. All are if
  // no cut parts the two.
  std::vector<bool> source_side(size_t source, size_t sink);

 private:
  struct Edge {
    size_t to;
    int64_t left;  // of its capacity
  };
  bool find_levels(size_t source, size_t sink);
  int64_t push(size_t source, size_t sink);

  std::vector<Edge> edges_;                    // each followed by its reverse
  std::vector<std::vector<size_t>> edges_of_;  // by vertex
  std::vector<int> level_;
  std::vector<size_t> next_;  // by vertex: the edge to be tried next
};

}  // namespace broach

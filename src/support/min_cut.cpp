#include "support/min_cut.h"

#include <algorithm>
#include <queue>

namespace broach {

void FlowNetwork::connect(size_t from, size_t to, int64_t capacity) {
  edges_of_[from].push_back(edges_.size());
  edges_.push_back({to, capacity});
  edges_of_[to].push_back(edges_.size());
  edges_.push_back({from, 0});
}

bool FlowNetwork::find_levels(size_t source, size_t sink) {
  level_.assign(edges_of_.size(), -1);
  level_[source] = 0;
  std::queue<size_t> found({source});
  for (; !found.empty(); found.pop())
    for (size_t e : edges_of_[found.front()])
      if (edges_[e].left > 0 && level_[edges_[e].to] < 0) {
        level_[edges_[e].to] = level_[found.front()] + 1;
        found.push(edges_[e].to);
      }
  return level_[sink] >= 0;
}

// Along one path of the levels; 0 if there is none left. Without recursion: paths are as long as the program.
int64_t FlowNetwork::push(size_t source, size_t sink) {
  std::vector<size_t> path;  // edges
  for (size_t v = source; v != sink;) {
    size_t& next = next_[v];
    while (next < edges_of_[v].size()) {
      const Edge& e = edges_[edges_of_[v][next]];
      if (e.left > 0 && level_[e.to] == level_[v] + 1) break;
      ++next;
    }
    if (next < edges_of_[v].size()) {
      path.push_back(edges_of_[v][next]);
      v = edges_[path.back()].to;
    } else if (path.empty()) {
      return 0;
    } else {
      v = edges_[path.back() ^ 1].to;
      path.pop_back();
      ++next_[v];
    }
  }
  int64_t flow = kUnlimited;
  for (size_t e : path) flow = std::min(flow, edges_[e].left);
  for (size_t e : path) edges_[e].left -= flow, edges_[e ^ 1].left += flow;
  return flow;
}

std::vector<bool> FlowNetwork::source_side(size_t source, size_t sink) {
  while (find_levels(source, sink)) {
    next_.assign(edges_of_.size(), 0);
    while (int64_t flow = push(source, sink))
      if (flow >= kUnlimited) return std::vector<bool>(edges_of_.size(), true);
  }
  std::vector<bool> side(edges_of_.size(), true);  // but for those from which more could flow into the sink
  side[sink] = false;
  std::queue<size_t> found({sink});
  for (; !found.empty(); found.pop())
    for (size_t e : edges_of_[found.front()])
      if (const size_t from = edges_[e].to; edges_[e ^ 1].left > 0 && side[from]) {
        side[from] = false;
        found.push(from);
      }
  return side;
}

}  // namespace broach

// How often kernels compute a value.
#pragma once

#include <set>
#include <vector>

#include "ir/graph.h"

namespace broach {

// A kernel computes a value once for each way of views on which it reads it: `y[1:] - y[:-1]` computes y twice. Each level of an algorithm
// that halves its input, as a scan does, doubles that. Nodes are met from the outputs backwards.
class Copies {
 public:
  using Users = std::vector<std::vector<const Node*>>;

  Copies(const Graph& graph, const Users& users) : symbols_(*graph.symbols()), users_(users), of_(graph.nodes().size()) {}
  // Kernel k stores n.
  void store(const Node& n, int k) { of_[n.id] = {{k, 0, elements(n)}}; }
  // Its users compute it.
  void compute(const Node& n) { of_[n.id] = read(n); }
  // The most that a kernel would compute of n, in elements of n. Some way to read the same is counted as another, but what is reduced and
  // what stands beside the reduction are one.
  double times(const Node& n) const;

 private:
  struct Copy {
    int kernel;
    size_t way;  // a hash of views
    double elements;
  };

  double elements(const Node& n) const;
  std::vector<Copy> read(const Node& n) const;

  const Symbols& symbols_;
  const Users& users_;
  std::vector<std::vector<Copy>> of_;  // by node
};

}  // namespace broach

// Fusion: which values exist in memory, and which are computed by one kernel.
//
// Nodes are visited from the outputs backwards. A node whose users all sit in one kernel is computed there, in registers. A
// node that several kernels use is recomputed in each if that is cheaper than a trip through memory, and stored otherwise.
// A stored node joins the kernel of a user when both have the same points and no other step must run between them.
//
// A kernel has a largest size, and so has every search: the time that all this takes is proportional to the nodes.
#include <algorithm>
#include <set>
#include <utility>

#include "schedule/schedule.h"

namespace broach {

namespace {

bool fusible(const Node& n) {
  OpKind k = kind_of(n.op);
  return k != OpKind::heavy && k != OpKind::routine && k != OpKind::external && n.op != Op::input;
}

// Compiling a kernel takes time with its length, and its values have registers to live in; beyond, a trip through memory is cheap.
constexpr int kMostNodes = 256;
constexpr size_t kMostStores = 32;
// Beyond, the answer is no.
constexpr size_t kMostTried = 16;      // kernels that a node might join
constexpr size_t kMostVisited = 2000;  // nodes, when looking for what must run between two

struct Cost {
  int loads = 0, ops = 0;
  bool heavy = false;
};

class Grouper {
 public:
  explicit Grouper(const FusionRules& rules) : r_(rules), users_(rules.graph.nodes().size()), kernels_of_(users_.size()) {
    groups_.in_memory.assign(users_.size(), false);
    seen_.assign(users_.size(), 0);
    for (const Node& n : r_.graph.nodes())
      for (const Value& v : n.inputs) users_[v.node->id].push_back(&n);
  }

  Groups run() {
    for (size_t i = users_.size(); i-- > 0;) place(r_.graph.nodes()[i]);
    return std::move(groups_);
  }

 private:
  void place(const Node& n) {
    if (!fusible(n)) {
      groups_.in_memory[n.id] = true;
      return;
    }
    if (r_.absorbed[n.id]) return;
    std::set<int> kernels;
    for (const Node* u : users_[n.id]) kernels.insert(kernels_of_[u->id].begin(), kernels_of_[u->id].end());
    bool store = r_.must_store[n.id] || (!r_.options.fuse && is_computed(n));
    if (!store && kernels.size() > 1) store = is_computed(n) && !cheap(n);
    if (!store && (is_elementwise(n.op) || is_reduce(n.op))) store = ends_kernel(n, kernels);
    if (!store) {
      for (int k : kernels) sizes_[static_cast<size_t>(k)] += size(n);
      kernels_of_[n.id] = std::move(kernels);
      return;
    }
    groups_.in_memory[n.id] = true;
    int k = r_.must_split[n.id] || !r_.options.fuse ? -1 : joinable(n, kernels);
    if (k < 0) {
      k = static_cast<int>(groups_.roots.size());
      groups_.roots.emplace_back();
      sizes_.push_back(0);
    }
    groups_.roots[static_cast<size_t>(k)].push_back(&n);
    sizes_[static_cast<size_t>(k)] += size(n);
    kernels_of_[n.id] = {k};
  }

  // Operations, and loads of what no kernel computes.
  static int size(const Node& n) {
    return 1 + static_cast<int>(std::count_if(n.inputs.begin(), n.inputs.end(), [](const Value& v) { return !fusible(*v.node); }));
  }

  // Whether a kernel that computes n is large enough. In a loop that the program unrolled it ends where it began, so that the
  // rounds of the loop are equal kernels.
  bool ends_kernel(const Node& n, const std::set<int>& kernels) const {
    return std::any_of(kernels.begin(), kernels.end(), [&](int k) {
      const Node& root = *groups_.roots[static_cast<size_t>(k)][0];
      const bool round = root.op == n.op && root.line == n.line;
      return sizes_[static_cast<size_t>(k)] >= (round ? kMostNodes / 2 : kMostNodes);
    });
  }

  static bool is_computed(const Node& n) { return kind_of(n.op) != OpKind::source; }

  // What computing a value again would read and do.
  Cost cost(const Node& n, int& visits) {
    constexpr int kMostVisits = 64;
    if (!fusible(n) || r_.must_store[n.id] || groups_.in_memory[n.id]) return {1, 0, false};
    if (is_reduce(n.op) || ++visits > kMostVisits) return {1, 0, true};
    if (n.op == Op::scalar || n.op == Op::iota || n.op == Op::size) return {};
    Cost c;
    for (const Value& v : n.inputs) {
      Cost x = cost(*v.node, visits);
      // A repeated operand stays in cache.
      if (n.op == Op::expand) x.loads = 0;
      c.loads += x.loads;
      c.ops += x.ops;
      c.heavy |= x.heavy;
    }
    if (is_elementwise(n.op)) c.ops += is_costly(n.op) ? 20 : 1;
    if (n.op == Op::take) c.ops += 10;
    return c;
  }

  bool cheap(const Node& n) {
    int visits = 0;
    Cost c = cost(n, visits);
    return !c.heavy && c.loads <= 1 && c.ops <= 8;
  }

  static const Shape& domain(const Node& root) { return is_reduce(root.op) ? root.inputs[0].shape() : root.results[0].shape; }

  int joinable(const Node& n, const std::set<int>& kernels) {
    size_t tried = 0;
    for (int k : kernels) {
      const auto& roots = groups_.roots[static_cast<size_t>(k)];
      if (++tried > kMostTried) break;
      if (sizes_[static_cast<size_t>(k)] >= kMostNodes || roots.size() >= kMostStores || !(domain(*roots[0]) == domain(n))) continue;
      bool split = std::any_of(roots.begin(), roots.end(), [&](const Node* m) { return r_.must_split[m->id]; });
      if (!split && !blocked(n, k)) return k;
    }
    return -1;
  }

  // The first visit of a node in a search that began with ++searches_.
  bool visit(const Node& n) { return std::exchange(seen_[n.id], searches_) != searches_; }

  // Whether something outside kernel k must run after n and before k.
  bool blocked(const Node& n, int k) {
    std::vector<const Node*> work(users_[n.id].begin(), users_[n.id].end()), outside;
    uint32_t last = 0;
    for (const Node* m : groups_.roots[static_cast<size_t>(k)]) last = std::max(last, m->id);
    ++searches_;
    for (size_t visited = 0; !work.empty();) {
      const Node* u = work.back();
      work.pop_back();
      if (u->id > last || !visit(*u)) continue;
      if (++visited > kMostVisited) return true;
      const auto& in = kernels_of_[u->id];
      bool inside = in.contains(k);
      if (inside && in.size() == 1 && !groups_.in_memory[u->id]) {
        // Still within k: its users are k's.
        for (const Node* v : users_[u->id]) work.push_back(v);
        continue;
      }
      if (inside) {
        if (in.size() == 1) continue;  // a root of k itself
        for (const Node* v : users_[u->id]) work.push_back(v);
        continue;
      }
      outside.push_back(u);
    }
    return reaches(std::move(outside), k, last);
  }

  // Whether what follows from any of these feeds kernel k.
  bool reaches(std::vector<const Node*> work, int k, uint32_t last) {
    ++searches_;
    for (size_t visited = 0; !work.empty();) {
      const Node* u = work.back();
      work.pop_back();
      if (u->id > last || !visit(*u)) continue;
      if (++visited > kMostVisited || kernels_of_[u->id].contains(k)) return true;
      // A kernel runs as a whole: from one of its nodes, everything that any of its roots feeds is reached.
      for (int other : kernels_of_[u->id])
        for (const Node* m : groups_.roots[static_cast<size_t>(other)])
          if (m->id != u->id) work.push_back(m);
      for (const Node* v : users_[u->id]) work.push_back(v);
    }
    return false;
  }

  const FusionRules& r_;
  std::vector<std::vector<const Node*>> users_;
  std::vector<std::set<int>> kernels_of_;
  std::vector<int> sizes_;      // by kernel
  std::vector<uint32_t> seen_;  // by node: the last search that met it
  uint32_t searches_ = 0;
  Groups groups_;
};

}  // namespace

Groups group_nodes(const FusionRules& rules) { return Grouper(rules).run(); }

}  // namespace broach

// Fusion: which values exist in memory, and which are computed by one kernel.
//
// Nodes are visited from the outputs backwards. A node whose users all sit in one kernel is computed there, in registers. A
// node that several kernels use is recomputed in each if that is cheaper than a trip through memory, and stored otherwise.
// A stored node joins the kernel of a user when both have the same points and no other step must run between them.
//
// A kernel has a largest size, and so has every search: the time that all this takes is proportional to the nodes.
#include "schedule/groups.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "schedule/copies.h"
#include "schedule/decisions.h"
#include "support/error.h"

namespace broach {

namespace {

// Compiling a kernel takes time with its length, and its values have registers to live in; beyond, a trip through memory is cheap.
constexpr int kMostNodes = 256;
constexpr size_t kMostStores = 32;
// Beyond, the answer is no.
constexpr size_t kMostTried = 16;      // kernels that a node might join
constexpr size_t kMostBelow = 64;      // nodes from which a value is computed
constexpr int64_t kMuch = 64;          // elements that repeat one
constexpr double kMostCopies = 3;      // of what is not cheap, in one kernel
constexpr size_t kMostVisited = 2000;  // nodes, when looking for what must run between two

struct Cost {
  int loads = 0, ops = 0;
  int64_t bytes = 0;  // loaded for each element
  bool heavy = false;
};

bool fusible(Op op) {
  const OpKind k = kind_of(op);
  return k != OpKind::heavy && k != OpKind::routine && k != OpKind::external && op != Op::input;
}

// By node: the device that it is computed on; none for what is made of constants and numbers of the host, which lies nowhere.
std::vector<std::optional<Device>> find_places(const Graph& graph) {
  std::vector<std::optional<Device>> out(graph.nodes().size());
  for (const Node& n : graph.nodes()) {
    const bool of_host = std::ranges::any_of(n.inputs, [&](const Value& v) {
      return v.type().device == Device{} && (fusible(v.node->op) ? out[v.node->id].has_value() : v.rank() > 0);
    });
    if (of_host || n.results[0].device != Device{}) out[n.id] = n.results[0].device;
  }
  return out;
}

// By node: what must run behind it. Effects keep their order, as if each read the one before.
std::vector<std::vector<const Node*>> find_users(const Graph& graph) {
  std::vector<std::vector<const Node*>> out(graph.nodes().size());
  const Node* effect = nullptr;
  for (const Node& n : graph.nodes()) {
    for (const Value& v : n.inputs) out[v.node->id].push_back(&n);
    if (n.has_effect() && effect) out[effect->id].push_back(&n);
    if (n.has_effect()) effect = &n;
  }
  return out;
}

// Operations, and loads of what no kernel computes.
int size(const Node& n) {
  return 1 + static_cast<int>(std::count_if(n.inputs.begin(), n.inputs.end(), [](const Value& v) { return !fusible(v.node->op); }));
}

bool is_computed(const Node& n) { return kind_of(n.op) != OpKind::source; }

// A cast that only takes more bytes, or that in another shape: its operand is what is worth storing.
bool widens(const Node& n) {
  if (n.op == Op::reshape) return widens(*n.inputs[0].node);
  return n.op == Op::cast && fusible(n.inputs[0].node->op) && size_of(n.inputs[0].dtype()) < size_of(n.results[0].dtype);
}

// Whether it is computed of a reduction of so many elements.
bool is_reduced_of(const Node& n, int64_t elements) {
  std::vector<const Node*> work{&n};
  for (size_t visited = 0; !work.empty() && visited < kMostBelow; ++visited) {
    const Node* m = work.back();
    work.pop_back();
    if (is_reduce(m->op) && m->inputs[0].type().numel().maybe_constant() == elements) return true;
    if (is_elementwise(m->op) || kind_of(m->op) == OpKind::view)
      for (const Value& v : m->inputs) work.push_back(v.node);
  }
  return false;
}

// Computed of few elements, such as statistics of a channel, for many: each of those would do it again. Not of a reduction that the
// same kernel makes, as a row's.
bool is_repeated(const Node& n, const std::vector<const Node*>& users) {
  if (!is_elementwise(n.op) || n.op == Op::cast) return false;
  const auto elements = n.results[0].numel().maybe_constant();
  return elements && std::ranges::any_of(users, [&](const Node* u) {
           const auto wider = u->results[0].numel().maybe_constant();
           return u->op == Op::expand && wider && *elements > 1 && *wider >= kMuch * *elements && !is_reduced_of(n, *wider);
         });
}

bool is_much_less(const Node& n, const Node* than) {
  const auto elements = n.results[0].numel().maybe_constant(), more = than->results[0].numel().maybe_constant();
  return elements && more && *more >= kMuch * *elements;
}

// Where n, or `same` with the same elements, is repeated for many.
const Node* find_repeat(const Node& n, const Node& same, const std::vector<std::vector<const Node*>>& users) {
  for (const Node* u : users[same.id]) {
    if (u->op == Op::expand && is_much_less(n, u)) return u;
    if (u->op != Op::reshape && !widens(*u)) continue;
    if (const Node* repeat = find_repeat(n, *u, users)) return repeat;
  }
  return nullptr;
}

// A reduction of what is computed of it, pointwise.
const Node* find_reduction(const Node& n, const std::vector<std::vector<const Node*>>& users, size_t steps = 8) {
  for (const Node* u : users[n.id]) {
    if (is_reduce(u->op)) return u;
    if (!is_elementwise(u->op) || users[u->id].size() != 1 || steps == 0) continue;
    if (const Node* reduction = find_reduction(*u, users, steps - 1)) return reduction;
  }
  return nullptr;
}

// Whether an expansion repeats each element for many results of a reduction.
bool is_repeated_for_results(const Node& expand, const Node& reduction) {
  const Shape &from = expand.inputs[0].shape(), &to = expand.results[0].shape;
  const auto& reduced = reduction.ints(Attr::dims);
  SymInt times(1);
  for (size_t d = 0; d < to.size(); ++d)
    if (!(from[d] == to[d]) && std::ranges::find(reduced, static_cast<int64_t>(d)) == reduced.end()) times = times * to[d];
  return times.is_constant() && times.constant() >= kMuch;
}

// Whether it is made by functions; those in double precision are calls that no compiler takes out of a loop.
bool takes_functions(const Node& n, bool are_calls) {
  std::vector<const Node*> work{&n};
  for (size_t visited = 0; !work.empty() && visited < kMostBelow; ++visited) {
    const Node* m = work.back();
    work.pop_back();
    if (is_costly(m->op) && (!are_calls || m->results[0].dtype == DType::f64)) return true;
    for (const Value& v : m->inputs)
      if (is_elementwise(v.node->op) || (!are_calls && is_view(v.node->op))) work.push_back(v.node);
  }
  return false;
}

// A row that is multiplied by each row of a matrix would be computed again for each.
bool is_dear_to_repeat(const Node& n, const std::vector<std::vector<const Node*>>& users) {
  if (!is_elementwise(n.op)) return false;
  const Node* repeat = find_repeat(n, n, users);
  if (!repeat || takes_functions(n, true)) return repeat;
  const Node* reduction = widens(n) ? nullptr : find_reduction(*repeat, users);
  return reduction && is_repeated_for_results(*repeat, *reduction) && takes_functions(n, false);
}

const Shape& domain(const Node& root) { return is_reduce(root.op) ? root.inputs[0].shape() : root.results[0].shape; }

// The first and the last of the nodes that it stores.
std::pair<uint32_t, uint32_t> span(const Group& k) {
  const auto [first, last] = std::ranges::minmax(k.roots, {}, &Node::id);
  return {first->id, last->id};
}

bool is_scalar(const Node& n) {
  const Node* m = &n;
  while (m->op == Op::expand || m->op == Op::reshape) m = m->inputs[0].node;
  return m->op == Op::scalar;
}

// A node and what kernels might compute of it, down to reductions.
template <class Nodes>
void collect_below(const Node& n, const Storage& storage, Nodes& below) {
  if (!is_fusible(n, storage) || storage.must_store[n.id] || below.size() > kMostBelow || !below.insert(&n).second) return;
  if (is_reduce(n.op)) return;
  for (const Value& v : n.inputs) collect_below(*v.node, storage, below);
}

class Grouper {
 public:
  explicit Grouper(FusionRules rules)
      : r_(std::move(rules)), users_(find_users(r_.graph)), kernels_of_(users_.size()), copies_(r_.graph, users_) {
    groups_.in_memory.assign(users_.size(), false);
    groups_.readers.resize(users_.size());
    places_ = find_places(r_.graph);
    is_as_rounded_ = needed_as_rounded(r_.graph);
    seen_.assign(users_.size(), 0);
    is_placed_.assign(users_.size(), false);
  }

  Groups run() {
    for (size_t i = users_.size(); i-- > 0;) place(r_.graph.nodes()[i]);
    for (size_t k = 0; k < fits_.size(); ++k) {
      groups_.kernels[k].space = fits_[k].space();
      groups_.kernels[k].reads_what_it_overwrites = fits_[k].reads_what_it_overwrites();
      groups_.kernels[k].can_fail = fits_[k].can_fail();
    }
    return std::move(groups_);
  }

 private:
  void place(const Node& n) {
    if (is_placed_[n.id]) return;
    std::set<int> kernels;
    for (const Node* u : users_[n.id]) kernels.insert(kernels_of_[u->id].begin(), kernels_of_[u->id].end());
    if (is_fusible(n, r_.storage)) {
      if (!is_stored(n, kernels)) return compute_in(n, std::move(kernels));
      const int k = kernel_for(n, kernels);
      groups_.kernels[static_cast<size_t>(k)].roots.push_back(&n);
      sizes_[static_cast<size_t>(k)] += size(n);
      kernels_of_[n.id] = {k};
      copies_.store(n, k);
    }
    // Of a contraction the end of its epilogue is.
    groups_.in_memory[n.id] = r_.storage.must_store[n.id] || (!r_.storage.absorbed[n.id] && kind_of(n.op) != OpKind::heavy);
    groups_.readers[n.id] = std::move(kernels);
  }

  bool is_stored(const Node& n, const std::set<int>& kernels) {
    if (r_.storage.must_store[n.id] || (!r_.fuse && is_computed(n))) return true;
    if (std::ranges::any_of(kernels, [&](int k) { return lies_elsewhere(n, k); })) return true;
    if (kernels.size() > 1 && is_as_rounded_[n.id]) return true;
    if (is_dear_to_repeat(n, users_)) return true;
    if (is_elementwise(n.op) && copies_.times(n) > kMostCopies && !cheap(n, kernels)) return true;
    if (kernels.size() > 1 && is_computed(n) && !widens(n) && (is_repeated(n, users_[n.id]) || !cheap(n, kernels))) return true;
    if ((is_elementwise(n.op) || is_reduce(n.op)) && ends_kernel(n, kernels)) return true;
    return !std::all_of(kernels.begin(), kernels.end(), [&](int k) { return fits_[static_cast<size_t>(k)].add(n); });
  }

  bool lies_elsewhere(const Node& n, int k) const {
    const auto &here = places_[n.id], &there = places_[groups_.kernels[static_cast<size_t>(k)].roots[0]->id];
    return here && there && *here != *there;
  }

  void compute_in(const Node& n, std::set<int> kernels) {
    for (int k : kernels) sizes_[static_cast<size_t>(k)] += size(n);
    kernels_of_[n.id] = std::move(kernels);
    copies_.compute(n);
  }

  // The kernel that stores it: that of a user, or one more.
  int kernel_for(const Node& n, const std::set<int>& kernels) {
    int joined = r_.must_split[n.id] || !r_.fuse ? -1 : joinable(n, kernels);
    if (joined < 0 && !r_.must_split[n.id] && r_.fuse && is_reduce(n.op)) joined = joinable(n, beside(n));
    if (joined < 0 && !r_.must_split[n.id] && r_.fuse && (is_elementwise(n.op) || is_reduce(n.op)))
      if (const int k = join_as_row(n, kernels); k >= 0) return k;
    if (joined >= 0 && fits_[static_cast<size_t>(joined)].add_root(n)) return joined;
    r_.must_split[n.id] = r_.must_split[n.id] || joined >= 0;
    Fit& fit = fits_.emplace_back(r_.storage);
    if (r_.overwritten[n.id] >= 0) fit.overwrite(r_.overwritten[n.id], *r_.storage.windows[n.id]);
    check(fit.add_root(n), "schedule: %", n.id, " (", name_of(n.op), ") fits no kernel");
    groups_.kernels.emplace_back();
    sizes_.push_back(0);
    return static_cast<int>(fits_.size()) - 1;
  }

  // Whether it stores what takes a kernel of its own.
  bool is_split(int k) const {
    return std::ranges::any_of(groups_.kernels[static_cast<size_t>(k)].roots, [&](const Node* m) { return r_.must_split[m->id]; });
  }

  // The kernel that now stores it for each of its rows, as the statistics of a row that it normalises.
  int join_as_row(const Node& n, const std::set<int>& kernels) {
    if (kernels.empty() || kernels.size() > kMostTried) return -1;
    for (int k : kernels) {
      if (groups_.kernels[static_cast<size_t>(k)].roots.size() >= kMostStores || lies_elsewhere(n, k) || is_split(k)) continue;
      const std::vector<const Node*> below = is_reduce(n.op) ? std::vector<const Node*>() : down_to_reductions(n, k);
      if ((below.empty() && !is_reduce(n.op)) || blocked(n, k) || !fits_[static_cast<size_t>(k)].add_row_root(n, below)) continue;
      for (const Node* m : below) compute_in(*m, {k}), is_placed_[m->id] = true;
      return k;
    }
    return -1;
  }

  // What n is computed of, the last first, where the nearest reductions are all that it depends on and kernel k all that reads any of it;
  // else nothing.
  std::vector<const Node*> down_to_reductions(const Node& n, int k) const {
    std::vector<const Node*> out;
    std::set<uint32_t, std::greater<>> open;
    auto read = [&](const Node& m) {
      for (const Value& v : m.inputs) open.insert(v.node->id);
    };
    bool reduces = false;
    for (read(n); !open.empty() && out.size() < kMostBelow;) {
      const Node& m = r_.graph.nodes()[*open.begin()];
      open.erase(open.begin());
      if (is_scalar(m)) continue;
      const bool is_below = is_reduce(m.op) || is_elementwise(m.op) || kind_of(m.op) == OpKind::view;
      const bool is_alone = std::ranges::all_of(users_[m.id], [&](const Node* u) {
        return u == &n || std::ranges::find(out, u) != out.end() || kernels_of_[u->id] == std::set<int>{k};
      });
      if (!is_below || !is_alone || r_.storage.must_store[m.id] || r_.must_split[m.id]) return {};
      out.push_back(&m);
      if (is_reduce(m.op)) reduces = true;
      else read(m);
    }
    return reduces && open.empty() ? out : std::vector<const Node*>();
  }

  // Whether a kernel that computes n is large enough. In a loop that the program unrolled it ends where it began, so that the
  // rounds of the loop are equal kernels.
  bool ends_kernel(const Node& n, const std::set<int>& kernels) const {
    return std::any_of(kernels.begin(), kernels.end(), [&](int k) {
      const Node& root = *groups_.kernels[static_cast<size_t>(k)].roots[0];
      const bool round = root.op == n.op && root.line == n.line;
      return sizes_[static_cast<size_t>(k)] >= (round ? kMostNodes / 2 : kMostNodes);
    });
  }

  // What computing a value again would read and do.
  Cost cost(const Node& n, int& visits) {
    constexpr int kMostVisits = 64;
    if (!fusible(n.op) || r_.storage.must_store[n.id] || groups_.in_memory[n.id] || stored_.contains(&n))
      return {1, 0, size_of(n.results[0].dtype), false};
    // What a reduction gives is stored where two kernels read it, and that is little beside what would be stored in its place.
    if (is_reduce(n.op) && is_much_less(n, asked_)) return {1, 0, size_of(n.results[0].dtype), false};
    if (is_reduce(n.op) || ++visits > kMostVisits) return {1, 0, 0, true};
    if (kind_of(n.op) == OpKind::source && n.op != Op::input) return {};
    Cost c;
    for (const Value& v : n.inputs) {
      Cost x = cost(*v.node, visits);
      // A repeated operand stays in cache, and what is computed for many elements is computed once (is_repeated).
      if (n.op == Op::expand) x.loads = 0, x.bytes = 0;
      if (n.op == Op::expand && is_much_less(*v.node, &n)) x.ops = 0;
      c.loads += x.loads;
      c.bytes += x.bytes;
      c.ops += x.ops;
      c.heavy |= x.heavy;
    }
    if (is_elementwise(n.op)) c.ops += is_costly(n.op) ? 20 : 1;
    if (kind_of(n.op) == OpKind::heavy_view) c.ops += 10;
    return c;
  }

  bool cheap(const Node& n, const std::set<int>& kernels) {
    stored_.clear();
    asked_ = &n;
    int visits = 0;
    Cost c = cost(n, visits);
    if (c.heavy && find_stored(n, kernels)) {
      visits = 0;
      c = cost(n, visits);
    }
    if (c.heavy || c.ops > 8) return false;
    // To load twice costs less than to load once, store, and load that twice.
    return c.loads <= 1 || (c.loads == 2 && kernels.size() == 2 && c.bytes < 3 * size_of(n.results[0].dtype));
  }

  // Reductions below n that do not fit these kernels: they are stored whatever becomes of n.
  bool find_stored(const Node& n, const std::set<int>& kernels) {
    std::set<const Node*, bool (*)(const Node*, const Node*)> below([](const Node* a, const Node* b) { return a->id > b->id; });
    collect_below(n, r_.storage, below);
    size_t tried = 0;
    for (int k : kernels) {
      if (++tried > kMostTried) break;
      Fit trial = fits_[static_cast<size_t>(k)];
      for (const Node* m : below)
        if (!trial.add(*m) && is_reduce(m->op)) stored_.insert(m);
    }
    return !stored_.empty();
  }

  int joinable(const Node& n, const std::set<int>& kernels) {
    size_t tried = 0;
    for (int k : kernels) {
      const auto& roots = groups_.kernels[static_cast<size_t>(k)].roots;
      if (++tried > kMostTried) break;
      if (sizes_[static_cast<size_t>(k)] >= kMostNodes || roots.size() >= kMostStores || !(domain(*roots[0]) == domain(n)) ||
          lies_elsewhere(n, k))
        continue;
      if (!is_split(k) && !blocked(n, k)) return k;
    }
    return -1;
  }

  // Kernels that reduce, as n does, what is computed of the same: read once, it serves both.
  std::set<int> beside(const Node& n) {
    const Node* first = n.inputs[0].node;
    while (first->op == Op::reshape || first->op == Op::permute) first = first->inputs[0].node;
    const Shape& shape = first->results[0].shape;
    std::set<int> out;
    std::vector<const Node*> work{first};
    ++searches_;
    for (size_t visited = 0; !work.empty() && visited < kMostBelow;) {
      const Node* m = work.back();
      work.pop_back();
      if (!visit(*m) || kind_of(m->op) == OpKind::view || (kind_of(m->op) == OpKind::source && m->op != Op::input)) continue;
      ++visited;
      for (const Node* u : users_[m->id])
        for (int k : kernels_of_[u->id])
          if (reduces_as(k, n)) out.insert(k);
      // What several read is likely in memory: behind it lies what is read at another time.
      if (is_elementwise(m->op) && (users_[m->id].size() == 1 || widens(*m)))
        for (const Value& v : m->inputs)
          if (v.shape() == shape) work.push_back(v.node);
    }
    return out;
  }

  bool reduces_as(int k, const Node& n) const {
    return std::ranges::any_of(groups_.kernels[static_cast<size_t>(k)].roots, [&](const Node* root) {
      return is_reduce(root->op) && root->inputs[0].shape() == n.inputs[0].shape() && root->ints(Attr::dims) == n.ints(Attr::dims);
    });
  }

  // The first visit of a node in a search that began with ++searches_.
  bool visit(const Node& n) { return std::exchange(seen_[n.id], searches_) != searches_; }

  // No node behind this one leads to kernel k. One behind k's own may: a kernel that it feeds has roots in front of it as well.
  uint32_t last_before(int k) const {
    uint32_t last = span(groups_.kernels[static_cast<size_t>(k)]).second;
    for (bool grows = true; std::exchange(grows, false);)
      for (const auto& other : groups_.kernels)
        if (const auto [begin, end] = span(other); end > last && begin < last) last = end, grows = true;
    return last;
  }

  // Whether something outside kernel k must run after n and before k.
  bool blocked(const Node& n, int k) {
    std::vector<const Node*> work(users_[n.id].begin(), users_[n.id].end()), outside;
    const uint32_t last = last_before(k);
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
        for (const Node* m : groups_.kernels[static_cast<size_t>(other)].roots)
          if (m->id != u->id) work.push_back(m);
      for (const Node* v : users_[u->id]) work.push_back(v);
    }
    return false;
  }

  FusionRules r_;
  std::vector<std::vector<const Node*>> users_;
  std::vector<std::set<int>> kernels_of_;
  Copies copies_;
  std::vector<std::optional<Device>> places_;
  std::vector<Fit> fits_;            // by kernel
  std::set<const Node*> stored_;     // of what is asked about: see find_stored
  const Node* asked_ = nullptr;      // whether it is cheap
  std::vector<int> sizes_;           // by kernel
  std::vector<bool> is_placed_;      // by node: with one behind it
  std::vector<bool> is_as_rounded_;  // by node: needed so by all
  std::vector<uint32_t> seen_;       // by node: the last search that met it
  uint32_t searches_ = 0;
  Groups groups_;
};

}  // namespace

Groups group_nodes(FusionRules rules) { return Grouper(std::move(rules)).run(); }

void decide_groups(Decisions& d) {
  std::vector<int> overwritten;
  for (const Node& n : d.graph.nodes()) overwritten.push_back(d.written_into(n));
  d.groups = group_nodes({d.graph, d.storage, d.options.fuse, d.must_split, std::move(overwritten)});
}

}  // namespace broach

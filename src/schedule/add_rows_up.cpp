#include "schedule/add_rows_up.h"

#include <algorithm>
#include <bit>
#include <map>

#include "schedule/exprs.h"
#include "schedule/kernel_facts.h"

namespace broach {

namespace {

using Kind = KernelExpr::Kind;

constexpr int64_t kRowsOfUnknown = 32;  // that are added up where nobody knows how many there are
constexpr int64_t kFewestRows = 4;

// Expressions of one kernel as those of another, whose axes are named otherwise.
struct Copier {
  const Kernel& from;
  Kernel& to;
  std::map<SymbolId, SymInt> axes;
  std::map<int, int> known = {};

  SymInt placed(const SymInt& n) const {
    return n.substitute([&](SymbolId id) -> std::optional<SymInt> {
      const auto at = axes.find(id);
      return at == axes.end() ? std::nullopt : std::optional(at->second);
    });
  }
  Access placed(Access a) const {
    a.index = placed(a.index);
    return moved(std::move(a), [&](int e) { return known.at(e); });
  }
  void copy(const std::vector<bool>& wanted) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i] || known.contains(static_cast<int>(i))) continue;
      KernelExpr e = moved(from.exprs[i], [&](int at) { return known.at(at); });
      e.access.index = placed(e.access.index);
      known[static_cast<int>(i)] = static_cast<int>(to.exprs.size());
      to.exprs.push_back(std::move(e));
    }
  }
};

class RowAdding {
 public:
  RowAdding(const Step& step, const Capabilities::RowAdder& able, std::vector<Buffer>& buffers)
      : step_(step), sums_(std::get<KernelStep>(step.work)), k_(*sums_.kernel), facts_(find_facts(k_)), able_(able), buffers_(buffers) {}

  std::optional<AddedRows> run() {
    if (k_.strict || can_fail(step_) || !sums_columns() || reads_along_sums() || !pays()) return std::nullopt;
    AddedRows out{step_, step_};
    const int first = static_cast<int>(k_.buffers.size());
    make_rows(out.rows);
    make_rest(out.rest, first);
    return out;
  }

 private:
  bool sums_columns() const {
    if (facts_.stages.size() != 1) return false;
    const bool are_sums = std::ranges::all_of(facts_.stages[0], [&](int r) {
      const KernelExpr& e = k_.exprs[static_cast<size_t>(r)];
      return e.op == Op::reduce_sum && (e.dtype == DType::f32 || e.dtype == DType::f64);
    });
    return are_sums && std::ranges::none_of(k_.stores, [&](const KernelStore& s) {
             auto moves = [&](const KernelAxis& a) { return a.reduced && s.access.index.contains(a.id); };
             return s.adds || facts_.inner[static_cast<size_t>(s.expr)] || std::ranges::any_of(k_.axes, moves);
           });
  }

  // Whether what is summed lies side by side: then its sums are of rows.
  bool reads_along_sums() const {
    return std::ranges::any_of(k_.exprs, [&](const KernelExpr& e) {
      if (e.kind != Kind::load) return false;
      const SymInt& at = e.access.index;
      const auto follows = [&](const KernelAxis& a) {
        const auto moves = at.linear_in(a.id);
        return a.reduced && moves && moves->first == SymInt(1);
      };
      return std::ranges::any_of(k_.axes, [&](const KernelAxis& a) { return !a.reduced && at.contains(a.id); }) &&
             std::ranges::any_of(k_.axes, follows);
    });
  }

  bool pays() {
    SymInt columns(1), rows(1);
    for (const KernelAxis& a : k_.axes) (a.reduced ? rows : columns) = (a.reduced ? rows : columns) * a.extent;
    if (!columns.is_constant() || columns.constant() < able_.fewest || columns.constant() > able_.most) return false;
    for (int b : sums_.buffers)
      if (buffers_[static_cast<size_t>(b)].type.device.kind != able_.device) return false;
    const auto known = rows.maybe_constant();
    int64_t smallest = 16;
    for (const DType t : k_.buffers) smallest = std::min(smallest, size_of(t));
    const auto row = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(columns.constant()))) * smallest;
    const int64_t parts = able_.processors * std::max<int64_t>(1, able_.bytes / row);
    added_ = known ? std::max(kFewestRows, (*known + parts - 1) / parts) : kRowsOfUnknown;
    if (known && (*known < 2 * added_ || *known * columns.constant() < able_.smallest)) return false;
    columns_ = columns, parts_ = ceildiv(rows, added_);
    return true;
  }

  // The position among all of the axes' positions, of which the last moves fastest.
  static SymInt position(const std::vector<KernelAxis>& axes) {
    SymInt out(0);
    for (const KernelAxis& a : axes) out = out * a.extent + SymInt::symbol(a.id);
    return out;
  }

  // The reduced axes become the rows, the others lie in them.
  void make_rows(Step& out) {
    Kernel k{.axes = {}, .buffers = k_.buffers, .exprs = {}, .stores = {}, .symbols = k_.symbols};
    Copier copier{k_, k, {}};
    std::vector<KernelAxis> rows, columns;
    for (const bool reduced : {true, false})
      for (const KernelAxis& a : k_.axes) {
        if (a.reduced != reduced) continue;
        const KernelAxis axis{kFirstAxis + static_cast<SymbolId>(k.axes.size()), a.extent, !reduced};
        copier.axes.emplace(a.id, SymInt::symbol(axis.id));
        k.axes.push_back(axis), (reduced ? rows : columns).push_back(axis);
      }
    std::vector<bool> wanted(k_.exprs.size());
    for (int r : facts_.stages[0]) collect_needed(k_, k_.exprs[static_cast<size_t>(r)].args[0], wanted);
    copier.copy(wanted);
    const SymInt at = floordiv(position(rows), added_) * columns_ + position(columns);
    for (int r : facts_.stages[0]) {
      const KernelExpr& e = k_.exprs[static_cast<size_t>(r)];
      k.stores.push_back({{static_cast<int>(k.buffers.size()), at, {}}, copier.known.at(e.args[0]), true});
      k.buffers.push_back(e.dtype);
      parts_of_.push_back(add_buffer(e.dtype));
    }
    finish(out, std::move(k));
  }

  void make_rest(Step& out, int first) {
    Kernel k{.axes = {}, .buffers = k_.buffers, .exprs = {}, .stores = {}, .symbols = k_.symbols};
    Copier copier{k_, k, {}};
    for (const KernelAxis& a : k_.axes) {
      if (a.reduced) continue;
      k.axes.push_back({kFirstAxis + static_cast<SymbolId>(k.axes.size()), a.extent, false});
      copier.axes.emplace(a.id, SymInt::symbol(k.axes.back().id));
    }
    const SymInt column = position(k.axes);
    k.axes.push_back({kFirstAxis + static_cast<SymbolId>(k.axes.size()), parts_, true});
    const SymInt at = SymInt::symbol(k.axes.back().id) * columns_ + column;
    for (size_t i = 0; i < facts_.stages[0].size(); ++i) {
      const int r = facts_.stages[0][i];
      const DType t = k_.exprs[static_cast<size_t>(r)].dtype;
      const int load = static_cast<int>(k.exprs.size());
      k.exprs.push_back({.kind = Kind::load, .dtype = t, .args = {}, .access = {first + static_cast<int>(i), at, {}}, .limit = {}});
      k.exprs.push_back({.kind = Kind::reduction, .dtype = t, .op = Op::reduce_sum, .args = {load}, .access = {}, .limit = {}});
      k.buffers.push_back(t);
      copier.known[r] = load + 1;
    }
    std::vector<bool> wanted(k_.exprs.size());
    for (const KernelStore& s : k_.stores) collect_needed(k_, s.expr, wanted);
    copier.copy(wanted);
    for (const KernelStore& s : k_.stores) k.stores.push_back({copier.placed(s.access), copier.known.at(s.expr)});
    finish(out, std::move(k));
  }

  int add_buffer(DType t) {
    const auto named = [&](const SymInt& n) {
      return n.substitute([&](SymbolId id) { return std::optional(SymInt::symbol(sums_.symbols[static_cast<size_t>(id)])); });
    };
    const Shape shape{named(parts_), columns_};
    const Device device = buffers_[static_cast<size_t>(sums_.buffers[0])].type.device;
    buffers_.push_back({Buffer::Kind::arena, -1, {t, shape, device}, contiguous_strides(shape), product(shape)});
    return static_cast<int>(buffers_.size()) - 1;
  }

  void finish(Step& out, Kernel k) const {
    KernelStep work{nullptr, sums_.buffers, sums_.symbols, sums_.starts, {}};
    work.buffers.insert(work.buffers.end(), parts_of_.begin(), parts_of_.end());
    if (!work.starts.empty()) work.starts.resize(work.buffers.size());
    work.kernel = std::make_shared<const Kernel>(std::move(k));
    work = without_idle_buffers(std::move(work));
    out.reads.clear(), out.writes.clear();
    for (const KernelExpr& e : work.kernel->exprs)
      if (e.kind == Kind::load) out.reads.push_back(work.buffers[static_cast<size_t>(e.access.buffer)]);
    for (const KernelStore& s : work.kernel->stores) out.writes.push_back(work.buffers[static_cast<size_t>(s.access.buffer)]);
    out.work = std::move(work);
  }

  const Step& step_;
  const KernelStep& sums_;
  const Kernel& k_;
  const KernelFacts facts_;
  const Capabilities::RowAdder& able_;
  std::vector<Buffer>& buffers_;
  int64_t added_ = 0;  // rows at a time
  SymInt columns_, parts_;
  std::vector<int> parts_of_;  // buffers, by reduction
};

}  // namespace

std::optional<AddedRows> add_rows_up(const Step& step, const Capabilities::RowAdder& able, std::vector<Buffer>& buffers) {
  if (able.most == 0 || step.early || !std::holds_alternative<KernelStep>(step.work)) return std::nullopt;
  return RowAdding(step, able, buffers).run();
}

}  // namespace broach

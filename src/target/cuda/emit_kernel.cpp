#include "target/cuda/emit_kernel.h"

#include <algorithm>
#include <utility>

#include "target/cuda/expression_emitter.h"

namespace broach::cuda {

namespace {

using Shape = KernelPlan::Shape;

std::string combine(const KernelExpr& r) {
  switch (r.op) {
    case Op::reduce_sum: return "Add";
    case Op::reduce_prod: return "Mul";
    case Op::reduce_max: return "Max";
    case Op::reduce_min: return "Min";
    default: return r.op == Op::reduce_argmax ? "Arg<true>" : "Arg<false>";
  }
}

// What a reduction of elements of this type begins with.
std::string identity(const KernelExpr& r, DType t) {
  switch (r.op) {
    case Op::reduce_sum: return constant_text(int64_t{0}, t);
    case Op::reduce_prod: return constant_text(int64_t{1}, t);
    case Op::reduce_max: return constant_text(t == DType::b1 ? Scalar(false) : lowest(t), t);
    case Op::reduce_min: return constant_text(t == DType::b1 ? Scalar(true) : highest(t), t);
    default: return cat("{", constant_text(int64_t{0}, t), ", -1}");
  }
}

class KernelEmitter : ExpressionEmitter {
 public:
  KernelEmitter(const KernelPlan& plan, const std::string& name) : ExpressionEmitter(plan, name) {}

  std::string run() {
    return around([&] {
      if (p_.added > 0) add_rows();
      else unit(), compute();
    });
  }

 private:
  void compute() {
    for (const auto& stage : p_.stages) reduce(stage);
    store_all();
  }

  void count_units() {
    name_symbols();
    line("const ", index_type(), " units = ", index(p_.units, 0), ";");
  }

  // The block's rows, one after the other, and then what they add up to.
  void add_rows() {
    count_units();
    for (size_t s = 0; s < k_.stores.size(); ++s)
      if (k_.stores[s].adds)
        line(computed_type(k_.buffers[static_cast<size_t>(k_.stores[s].access.buffer)]), " t", s, "[", p_.trips * p_.lanes, "] = {};");
    line("const ", index_type(), " first = static_cast<", index_type(), ">(blockIdx.x) * ", p_.added, ";");
    line("const bool is_unit = true;");
    declare(p_.kept, true);
    if (!p_.kept.empty())
      for_steps([&] {
        for (int e : p_.kept)
          for (int64_t l = 0; l < p_.lanes; ++l) value(e, l);
      });
    filled_ = p_.kept;
    line("const ", index_type(), " last = min(units, first + ", p_.added, ") - 1;");
    begin_ahead();
    open(cat("for (", index_type(), " unit = first; unit <= last; ++unit)"));
    if (!p_.ahead.empty()) {
      line("const Ahead here = next;");
      line("const ", index_type(), " behind = min(unit + 1, last);");
      load_ahead("behind");
    }
    begin_unit();
    compute();
    close();
    values_.clear(), filled_.clear();
    stand(p_.unit_axes, "first", 1);
    for_steps([&] {
      for (size_t s = 0; s < k_.stores.size(); ++s)
        if (k_.stores[s].adds) store(k_.stores[s], [&](int64_t lane) { return sum_of(s, lane); });
    });
  }

  // `next` for what is loaded ahead.
  void begin_ahead() {
    if (p_.ahead.empty()) return;
    open("struct Ahead");
    for (int e : p_.ahead) {
      const std::string type = stored_type(k_.buffers[static_cast<size_t>(p_.expr(e).access.buffer)]);
      line(is_inner(e) ? cat("Row<", type, ", ", p_.lanes, "> r", e, "[", p_.trips, "];") : cat(type, " r", e, ";"));
    }
    --depth_, line("} next;");
    load_ahead("first");
  }

  // Into `next`, of this unit.
  void load_ahead(const char* unit) {
    open("");
    stand(p_.unit_axes, unit, 1);
    for (int e : p_.ahead)
      if (!is_inner(e)) line("next.r", e, " = *(", address(p_.expr(e).access, 0), ");");
    for_steps([&] {
      for (int e : p_.ahead)
        if (is_inner(e)) line("next.r", e, "[t] = load_row<", p_.lanes, ">(", address(p_.expr(e).access, 0), ");");
    });
    close();
  }

  std::string sum_of(size_t store, int64_t lane) const { return cat("t", store, "[", cache_step_, " * ", p_.lanes, " + ", lane, "]"); }

  // The unit of this thread, and where its axes stand. A team stays whole for its reductions: behind the last unit it repeats that.
  void unit() {
    count_units();
    const bool rows = p_.shape == Shape::rows;
    line(index_type(), " unit = static_cast<", index_type(), ">(blockIdx.x) * ", p_.width, " + static_cast<int>(threadIdx.",
         rows ? "y" : "x", ");");
    if (p_.has_reductions()) {
      line("const bool is_unit = unit < units;");
      line("if (!is_unit) unit = units - 1;");
    } else {
      line("if (unit >= units) return;");
    }
    begin_unit();
  }

  void begin_unit() {
    stand(p_.unit_axes, "unit", p_.shape == Shape::rows ? 1 : p_.lanes);
    declare(p_.cached, false);
  }

  void declare(const std::set<int>& cached, bool kept) {
    for (int e : cached)
      if (p_.kept.contains(e) == kept) line(computed_type(p_.expr(e).dtype), " c", e, "[", p_.trips * p_.lanes, "];");
  }

  // Each of the team's steps, as this thread takes them: `body` is written once.
  template <class Body>
  void for_steps(const Body& body) {
    const bool rows = p_.shape == Shape::rows;
    const int64_t lanes = rows ? p_.lanes : 1;
    const std::string thread = rows ? "static_cast<int>(threadIdx.x)" : "static_cast<int>(threadIdx.y)";
    const std::string all = lanes > 1 ? cat("(", index(p_.steps, 0), ") / ", lanes) : index(p_.steps, 0);
    const auto values = values_;
    if (p_.trips > 0) {
      line("#pragma unroll");
      open(cat("for (int t = 0; t < ", p_.trips, "; ++t)"));
      line("const ", index_type(), " step = t * ", p_.team, " + ", thread, ";");
      const bool whole = p_.steps.constant() == p_.trips * lanes * p_.team;
      if (!whole) open(cat("if (step < ", all, ")"));
      cache_step_ = "t";
      stand(p_.step_axes, "step", lanes);
      body();
      cache_step_.clear();
      if (!whole) close();
    } else {
      if (!rows) line("#pragma unroll 4");
      open(cat("for (", index_type(), " step = ", thread, "; step < ", all, "; step += ", p_.team, ")"));
      stand(p_.step_axes, "step", lanes);
      body();
    }
    close();
    values_ = values;
  }

  // ---- reductions ----

  DType reduced_dtype(const KernelExpr& r) const { return is_index_reduction(r.op) ? p_.expr(r.args[0]).dtype : r.dtype; }
  std::string accumulator_type(const KernelExpr& r) const {
    const std::string value = computed_type(reduced_dtype(r));
    return is_index_reduction(r.op) ? cat("Best<", value, ">") : value;
  }
  static std::string accumulator(int r, int64_t lane) { return cat("a", r, "_", lane); }

  // In rows the lanes are parts of one result, else results of their own.
  int64_t results(int r) const { return p_.shape == Shape::rows || !p_.varies(r) ? 1 : p_.lanes; }

  void reduce(const std::vector<int>& stage) {
    for (int r : stage)
      for (int64_t l = 0; l < results(r); ++l)
        line(accumulator_type(p_.expr(r)), " ", accumulator(r, l), " = ", identity(p_.expr(r), reduced_dtype(p_.expr(r))), ";");
    std::vector<bool> needed(k_.exprs.size());
    for_steps([&] {
      for (int64_t l = 0; l < p_.lanes; ++l)
        for (int r : stage)
          if (p_.shape == Shape::rows) accumulate(r, l, accumulator(r, 0));
          else if (l < results(r)) accumulate(r, l, accumulator(r, l));
      if (p_.stores_inside() && p_.has_one_pass()) store_inside();
      else if (&stage == &p_.stages.front()) add_up(true);
    });
    if (p_.shape == Shape::rows) finish_rows(stage);
    else finish_columns(stage);
    for (int r : stage) collect_needed(k_, p_.expr(r).args[0], needed);
    for (int e : p_.cached)
      if (needed[static_cast<size_t>(e)]) filled_.insert(e);
  }

  void accumulate(int r, int64_t lane, const std::string& sum) {
    const KernelExpr& e = p_.expr(r);
    std::string x = value(e.args[0], lane);
    if (is_index_reduction(e.op)) x = cat(accumulator_type(e), "{", x, ", ", index(e.access.index, lane), "}");
    line(sum, " = ", combine(e), "::of(", sum, ", ", x, ");");
  }

  // The warps of a team wait for each other once for all reductions of a stage. What they share is not written again before all have read
  // it: of rows that are added up each second one takes the same memory, and the team has met for the one between.
  void finish_rows(const std::vector<int>& stage) {
    for (int r : stage) line("const auto w", r, " = over_warp<", p_.team, ", ", combine(p_.expr(r)), ">(", accumulator(r, 0), ");");
    const bool is_one = p_.team <= 32;
    const std::string slot = p_.added > 0 ? "[unit & 1]" : "";
    for (int r : stage) {
      if (is_one) continue;
      line("__shared__ OfWarps<", p_.team, ", ", accumulator_type(p_.expr(r)), "> shared", r, p_.added > 0 ? "[2];" : ";");
      line("put(shared", r, slot, ", w", r, ");");
    }
    if (!is_one) line("__syncthreads();");
    for (int r : stage) finish(r, 0, is_one ? cat("w", r) : cat("over_warps<", combine(p_.expr(r)), ">(shared", r, slot, ")"));
  }

  // Likewise the threads that share columns.
  void finish_columns(const std::vector<int>& stage) {
    const bool is_one = p_.team == 1;
    for (int r : stage) {
      if (!is_one) line("__shared__ OfColumns<", p_.team, ", ", results(r), ", ", accumulator_type(p_.expr(r)), "> shared", r, ";");
      for (int64_t l = 0; !is_one && l < results(r); ++l) line("put(shared", r, ", ", l, ", ", accumulator(r, l), ");");
    }
    if (!is_one) line("__syncthreads();");
    for (int64_t first = 0; int r : stage)
      if (!is_one) line("combine<", combine(p_.expr(r)), ", ", std::exchange(first, first + results(r)), ">(shared", r, ");");
    if (!is_one) line("__syncthreads();");
    for (int r : stage)
      for (int64_t l = 0; l < results(r); ++l)
        finish(r, l, is_one ? accumulator(r, l) : cat("shared", r, ".part[0][", l, "][threadIdx.x]"));
  }

  void finish(int r, int64_t lane, std::string all) {
    const KernelExpr& e = p_.expr(r);
    const std::string name = cat("v", r, p_.varies(r) ? cat("_", lane) : "");
    if (is_index_reduction(e.op)) all += ".at";
    line("const ", computed_type(e.dtype), " ", name, " = ", p_.rounds[static_cast<size_t>(r)] ? as_stored(all, e.dtype) : all, ";");
    values_[{r, lane}] = name;
  }

  // ---- stores ----

  // What is the same at all steps is computed before them: for all that the compiler knows, a store could change what is loaded.
  void compute_ahead() {
    if (p_.steps.maybe_constant().value_or(0) == 0) return;
    std::vector<bool> needed(k_.exprs.size());
    for (const KernelStore& s : k_.stores)
      if (p_.is_inside(s)) collect_needed(k_, s.expr, needed);
    for (size_t i = 0; i < needed.size(); ++i) {
      const auto e = static_cast<int>(i);
      const bool is_computed = p_.expr(e).kind == KernelExpr::Kind::load || p_.expr(e).kind == KernelExpr::Kind::op;
      if (!needed[i] || p_.inner[i] || !is_computed) continue;
      for (int64_t l = 0; l < (p_.varies(e) ? p_.lanes : 1); ++l) value(e, l);
    }
  }

  void store_those(bool inside) {
    for (const KernelStore& s : k_.stores)
      if (p_.is_inside(s) == inside && !s.adds) store(s, [&](int64_t lane) { return value(s.expr, lane); });
    if (!inside) return;
    if (p_.has_one_pass() || p_.stages.empty()) add_up(true);
    add_up(false);
  }

  // What is added up over rows, in the first pass or the last.
  void add_up(bool first) {
    for (size_t s = 0; s < k_.stores.size(); ++s) {
      if (!k_.stores[s].adds || adds_first(k_, k_.stores[s]) != first) continue;
      for (int64_t l = 0; l < p_.lanes; ++l) {
        const std::string x = value(k_.stores[s].expr, l);
        line(sum_of(s, l), " += ", x, ";");
      }
    }
  }

  void store_inside() {
    open("if (is_unit)");
    const auto values = values_;
    store_those(true);
    values_ = values;
    close();
  }

  void store_all() {
    if (!p_.has_reductions()) return store_those(false);
    if (p_.stores_inside() && !p_.has_one_pass()) {
      compute_ahead();
      for_steps([&] { store_inside(); });
    }
    if (std::ranges::all_of(k_.stores, [&](const KernelStore& s) { return p_.is_inside(s); })) return;
    open(p_.shape == Shape::rows ? "if (is_unit && threadIdx.x == 0)" : "if (is_unit && threadIdx.y == 0)");
    store_those(false);
    close();
  }
};

class TileEmitter : ExpressionEmitter {
 public:
  TileEmitter(const KernelPlan& plan, const std::string& name) : ExpressionEmitter(plan, name) {}

  std::string run() {
    return around([&] { compute(); });
  }

 private:
  // The block's square of two axes: what lies along the other one is loaded as it lies, and read as it is stored.
  void compute() {
    const KernelAxis &axis = k_.axes[p_.axis], &across = k_.axes[*p_.across];
    name_symbols();
    line("const ", index_type(), " along = ", index(ceildiv(axis.extent, kTile), 0), ", down = ", index(ceildiv(across.extent, kTile), 0),
         ";");
    line("const ", index_type(), " tile = static_cast<", index_type(), ">(blockIdx.x), first = tile % along * ", kTile,
         ", top = tile / along % down * ", kTile, ", outer = tile / along / down;");
    stand(p_.unit_axes, "outer", 1);
    for (int e : p_.turned) {
      const DType t = k_.buffers[static_cast<size_t>(p_.expr(e).access.buffer)];
      // A row more than a number of words that is a power of two: columns then lie in memory banks of their own.
      line("__shared__ ", stored_type(t), " turned", e, "[", kTile, "][", kTile + std::max<int64_t>(1, 4 / size_of(t)), "];");
    }
    for_tile("first + k", "top + static_cast<int>(threadIdx.x)", [&] {
      for (int e : p_.turned) line("turned", e, "[k][threadIdx.x] = *(", address(p_.expr(e).access, 0), ");");
    });
    line("__syncthreads();");
    for_tile("first + static_cast<int>(threadIdx.x)", "top + k", [&] {
      for (const KernelStore& s : k_.stores) store(s, [&](int64_t lane) { return value(s.expr, lane); });
    });
  }

  // `axis` and `across`: where the two stand, by a thread's steps `k`.
  template <class Body>
  void for_tile(const char* axis, const char* across, const Body& body) {
    line("#pragma unroll");
    open(cat("for (int k = static_cast<int>(threadIdx.y); k < ", kTile, "; k += ", p_.team, ")"));
    std::string is_within;
    for (const auto& [a, at] : {std::pair(p_.axis, axis), std::pair(*p_.across, across)}) {
      const std::string name = cat("i", k_.axes[a].id - kFirstAxis);
      line("const ", index_type(), " ", name, " = ", at, ";");
      is_within += cat(is_within.empty() ? "" : " && ", name, " < ", index(k_.axes[a].extent, 0));
    }
    open(cat("if (", is_within, ")"));
    body();
    close(), close();
  }
};

}  // namespace

std::string emit_kernel(const KernelPlan& plan, const std::string& name) {
  return plan.across ? TileEmitter(plan, name).run() : KernelEmitter(plan, name).run();
}

}  // namespace broach::cuda

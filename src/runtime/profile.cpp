#include "runtime/profile.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>

#include "support/error.h"

namespace broach {

namespace {

std::atomic<bool>& switch_() {
  static std::atomic<bool> on = [] {
    const char* text = std::getenv("BROACH_PROFILE");
    return text && *text && std::string(text) != "0";
  }();
  return on;
}

// Elements that an access touches: one for each position of the axes that move it.
double elements(const Kernel& k, const Access& a, const std::vector<std::vector<bool>>& uses,
                const std::function<int64_t(const SymInt&)>& eval) {
  double n = 1;
  for (size_t i = 0; i < k.axes.size(); ++i) {
    bool moves = a.index.contains(k.axes[i].id);
    for (const auto& d : a.dynamic) moves = moves || uses[static_cast<size_t>(d.first)][i];
    if (moves) n *= static_cast<double>(eval(k.axes[i].extent));
  }
  return n;
}

StepCost cost_of(const KernelStep& s, std::span<const int64_t> symbols) {
  const Kernel& k = *s.kernel;
  auto eval = [&](const SymInt& e) { return e.eval([&](SymbolId id) { return symbols[s.symbols.at(id)]; }); };
  auto uses = axis_uses(k);
  // Several reads of one buffer (the taps of a window) meet in the caches; what is written is counted on top.
  std::map<int, double> read, written;
  for (const auto& e : k.exprs)
    if (e.kind == KernelExpr::Kind::load) {
      double& most = read[e.access.buffer];
      most = std::max(most, elements(k, e.access, uses, eval));
    }
  for (const auto& st : k.stores)
    written[st.access.buffer] += elements(k, st.access, uses, eval) / (st.adds ? static_cast<double>(rows_added(k)) : 1);
  StepCost c;
  for (const auto* counts : {&read, &written})
    for (const auto& [b, n] : *counts) c.bytes += n * static_cast<double>(size_of(k.buffers[static_cast<size_t>(b)]));
  return c;
}

// Elements that lie in memory: a repeated dimension is one.
double bytes_of(const Operand& o, std::span<const int64_t> symbols) {
  double n = static_cast<double>(size_of(o.type.dtype));
  for (size_t d = 0; d < o.type.shape.size(); ++d)
    if (o.place.strides[d].eval(symbols) != 0) n *= static_cast<double>(o.type.shape[d].eval(symbols));
  return n;
}

double bytes_of(const std::vector<Operand>& operands, std::span<const int64_t> symbols) {
  double sum = 0;
  for (const Operand& o : operands)
    if (o.place.buffer >= 0) sum += bytes_of(o, symbols);
  return sum;
}

StepCost cost_of(const ContractionStep& c, std::span<const int64_t> symbols) {
  StepCost cost{bytes_of(c.operands, symbols) + bytes_of(c.result, symbols), 0};
  if (c.bias) cost.bytes += bytes_of(*c.bias, symbols);
  for (const Epilogue& e : c.epilogue)
    if (e.operand) cost.bytes += bytes_of(*e.operand, symbols);
  const Shape& x = c.operands[0].type.shape;
  const Shape& w = c.operands[1].type.shape;
  // Multiply-adds for each element: of the result, for a transposed convolution of the operand, for a weight's gradient of that.
  bool transposed = c.operation.op == Op::conv && c.operation.integer(Attr::transposed) != 0;
  const bool to_weight = c.operation.op == Op::conv_weight_gradient;
  const Shape& kernel = to_weight ? c.result.type.shape : w;
  double depth = 1;
  if (c.operation.op == Op::dot) depth = static_cast<double>(x.back().eval(symbols));
  else
    for (size_t d = 1; d < kernel.size(); ++d) depth *= static_cast<double>(kernel[d].eval(symbols));
  const Type& each = to_weight ? c.operands[1].type : transposed ? c.operands[0].type : c.operation.results[0];
  cost.flops = 2 * depth * static_cast<double>(each.numel().eval(symbols));
  return cost;
}

// Whether the first result lies where the first operand lay, so that only what changes is touched.
bool is_in_place(const RoutineStep& r, std::span<const Buffer> buffers) {
  int from = r.operands[0].place.buffer, to = r.results[0].place.buffer;
  if (from < 0 || to < 0) return false;
  const Buffer &x = buffers[static_cast<size_t>(from)], &y = buffers[static_cast<size_t>(to)];
  return x.kind == Buffer::Kind::input && y.kind == Buffer::Kind::input && x.index == y.index;
}

// Products of attention: of queries and keys, weights and values; in its gradient those of the weights once more, and of what each operand
// gets. In causal attention half of the scores are there.
double flops_of(const RoutineStep& r, std::span<const int64_t> symbols) {
  const Op op = r.operation.op;
  if (op != Op::attention && op != Op::attention_gradient) return 0;
  auto size = [&](size_t operand, size_t d) { return static_cast<double>(r.operands[operand].type.shape[d].eval(symbols)); };
  const double scores = size(0, 0) * size(0, 1) * size(0, 2) * size(1, 2), depth = size(0, 3), value_depth = size(2, 3);
  const double each = op == Op::attention ? depth + value_depth : 3 * depth + 2 * value_depth;
  return (r.operation.integer(Attr::causal) != 0 ? 1 : 2) * scores * each;
}

StepCost cost_of(const RoutineStep& r, std::span<const Buffer> buffers, std::span<const int64_t> symbols) {
  double bytes = bytes_of(r.operands, symbols) + bytes_of(r.results, symbols);
  if (is_in_place(r, buffers))
    bytes += bytes_of(r.operands.back(), symbols) - bytes_of(r.operands[0], symbols) - bytes_of(r.results[0], symbols);
  return {bytes, flops_of(r, symbols)};
}

std::string shape_text(const Shape& s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) out += cat(i ? "x" : "", s[i]);
  return out.empty() ? "1" : out;
}

std::string name_of_kernel(const Kernel& k) {
  Shape kept, reduced;
  for (const auto& a : k.axes) (a.reduced ? reduced : kept).push_back(a.extent);
  std::string out = cat("kernel ", shape_text(kept), reduced.empty() ? "" : " over " + shape_text(reduced), ":");
  std::vector<std::string> seen;
  for (const auto& e : k.exprs) {
    if (e.kind != KernelExpr::Kind::op && e.kind != KernelExpr::Kind::reduction) continue;
    std::string name = broach::name_of(e.op);
    if (std::find(seen.begin(), seen.end(), name) == seen.end()) seen.push_back(name);
  }
  constexpr size_t kMost = 8;
  for (size_t i = 0; i < std::min(seen.size(), kMost); ++i) out += " " + seen[i];
  if (seen.size() > kMost) out += " ..";
  if (seen.empty()) out += " copy";
  return out;
}

std::string name_of_contraction(const ContractionStep& c) {
  std::string out =
      cat(broach::name_of(c.operation.op), " ", shape_text(c.operands[0].type.shape), " by ", shape_text(c.operands[1].type.shape));
  if (c.bias) out += " bias";
  for (const Epilogue& e : c.epilogue) out += cat(" ", broach::name_of(e.op));
  return out;
}

}  // namespace

StepCost step_cost(const Step& step, std::span<const Buffer> buffers, std::span<const int64_t> symbols) {
  if (auto k = std::get_if<KernelStep>(&step.work)) return cost_of(*k, symbols);
  if (auto c = std::get_if<ContractionStep>(&step.work)) return cost_of(*c, symbols);
  if (auto r = std::get_if<RoutineStep>(&step.work)) return cost_of(*r, buffers, symbols);
  if (auto c = std::get_if<CopyStep>(&step.work)) {
    const Buffer& b = buffers[static_cast<size_t>(c->from)];
    return {2 * static_cast<double>(b.elements.eval(symbols) * size_of(b.type.dtype)), 0};
  }
  const auto& e = std::get<ExternStep>(step.work);
  StepCost cost{bytes_of(e.operands, symbols), 0};
  for (size_t i = 0; i < e.results.size(); ++i)
    if (e.results[i] >= 0) {
      const Type& t = e.operation.results[i];
      cost.bytes += static_cast<double>(t.numel().eval(symbols) * size_of(t.dtype));
    }
  return cost;
}

std::string step_name(const Step& step) {
  if (auto k = std::get_if<KernelStep>(&step.work)) return name_of_kernel(*k->kernel);
  if (auto c = std::get_if<ContractionStep>(&step.work)) return name_of_contraction(*c);
  if (auto r = std::get_if<RoutineStep>(&step.work))
    return cat("routine ", name_of(r->operation.op), " ", shape_text(r->operands[0].type.shape));
  if (std::holds_alternative<CopyStep>(step.work)) return cat("copy ", step.device.str());
  return cat("extern ", std::get<ExternStep>(step.work).operation.call().schema);
}

bool Profile::enabled() { return switch_().load(std::memory_order_relaxed); }
void Profile::enable(bool on) { switch_() = on; }

void Profile::add(size_t step, double seconds, const StepCost& cost) {
  std::lock_guard lock(mutex_);
  Best& b = best_.at(step);
  if (b.runs++ == 0 || seconds < b.seconds) b.seconds = seconds, b.cost = cost;
}

std::vector<StepProfile> Profile::report(const Schedule& schedule) const {
  std::lock_guard lock(mutex_);
  std::vector<StepProfile> out;
  for (size_t i = 0; i < best_.size(); ++i) {
    const Best& s = best_[i];
    if (s.runs == 0) continue;
    int32_t line = schedule.steps[i].line;
    const auto& lines = schedule.graph->lines();
    std::string where = line >= 0 && static_cast<size_t>(line) < lines.size() ? lines[static_cast<size_t>(line)] : "";
    out.push_back({step_name(schedule.steps[i]), std::move(where), s.runs, s.seconds, s.cost.bytes, s.cost.flops});
  }
  return out;
}

}  // namespace broach

#include "ir/whole_part.h"

#include <cmath>

namespace broach {

namespace {

constexpr double kExact = 9007199254740992.0;  // 2^53: integers up to here are numbers
constexpr int64_t kMostUnder = int64_t{1} << 20;

// over / under, of which `over` is at most so large. Rounded by at most one division.
struct Ratio {
  SymInt over;
  int64_t under = 1;
  double most = 0;
  bool is_rounded = false;
};

// What is exact: its elements are multiples of a power of two.
std::optional<Ratio> checked(Ratio r) { return r.most < kExact && r.under <= kMostUnder ? std::optional(std::move(r)) : std::nullopt; }

std::optional<Ratio> constant(double value) {
  for (int64_t under = 1; under <= kMostUnder; under *= 2) {
    const double over = value * static_cast<double>(under);
    if (std::abs(over) < kExact && over == std::floor(over)) return Ratio{static_cast<int64_t>(over), under, std::abs(over)};
  }
  return std::nullopt;
}

bool is_power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

std::optional<Ratio> sum(const Ratio& a, const Ratio& b, int64_t sign) {
  return checked({a.over * b.under + b.over * SymInt(a.under * sign), a.under * b.under,
                  a.most * static_cast<double>(b.under) + b.most * static_cast<double>(a.under)});
}

std::optional<Ratio> product(const Ratio& a, const Ratio& b) { return checked({a.over * b.over, a.under * b.under, a.most * b.most}); }

// By a constant. What is no integer is 1 / (under * d) from the next one at least, and rounding moves a number below 2^40 by 2^-13 at most.
std::optional<Ratio> quotient(const Ratio& a, const Ratio& b) {
  constexpr int64_t kMostRounded = int64_t{1} << 11;
  if (!b.over.is_constant() || b.over.constant() <= 0) return std::nullopt;
  const int64_t d = b.over.constant();
  Ratio out{a.over * b.under, a.under, a.most * static_cast<double>(b.under)};
  if (d > kMostUnder || !checked(out)) return std::nullopt;
  out.under *= d;
  if (is_power_of_two(d)) return checked(std::move(out));
  out.is_rounded = true;
  const double most = out.most / static_cast<double>(out.under);
  return out.under <= kMostRounded && most <= static_cast<double>(kMostOfSize) ? std::optional(std::move(out)) : std::nullopt;
}

std::optional<Ratio> ratio(const HostFloats& floats, HostFloats::Id id) {
  using Op = HostFloats::Op;
  const HostFloats::Step step = floats.step(id);
  if (step.op == Op::size) return Ratio{step.size, 1, static_cast<double>(kMostOfSize)};
  if (step.op == Op::constant) return constant(floats.hint(id));
  if (step.op != Op::add && step.op != Op::sub && step.op != Op::mul && step.op != Op::div && step.op != Op::neg) return std::nullopt;
  const std::optional<Ratio> a = ratio(floats, step.a), b = step.b < 0 ? Ratio{SymInt(-1), 1, 1} : ratio(floats, step.b);
  if (!a || !b || a->is_rounded || b->is_rounded) return std::nullopt;
  if (step.op == Op::add || step.op == Op::sub) return sum(*a, *b, step.op == Op::add ? 1 : -1);
  return step.op == Op::div ? quotient(*a, *b) : product(*a, *b);
}

}  // namespace

std::optional<SymInt> whole_part(const HostFloats& floats, HostFloats::Id id, bool up) {
  const std::optional<Ratio> r = floats.is_deferred(id) ? std::nullopt : ratio(floats, id);
  if (!r) return std::nullopt;
  const SymInt minus(-1);
  return up ? floordiv(r->over * minus, r->under) * minus : floordiv(r->over, r->under);
}

}  // namespace broach

// Numbers without their fraction as expressions of sizes, against what Python's math computes: the function of the rounded number.
#include "ir/whole_part.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>

using namespace broach;

namespace {

using Id = HostFloats::Id;
using Op = HostFloats::Op;

struct Program {
  const char* text;
  std::function<Id(HostFloats&, Id)> build;
  std::function<double(double)> value;
};

Id with(HostFloats& f, Op op, Id a, double b) { return f.compute(op, a, f.constant(b)); }

const Program kKnown[] = {
    {"n", [](HostFloats&, Id n) { return n; }, [](double n) { return n; }},
    {"n / 2", [](HostFloats& f, Id n) { return with(f, Op::div, n, 2); }, [](double n) { return n / 2; }},
    {"n * 0.5", [](HostFloats& f, Id n) { return with(f, Op::mul, n, 0.5); }, [](double n) { return n * 0.5; }},
    {"n / 3", [](HostFloats& f, Id n) { return with(f, Op::div, n, 3); }, [](double n) { return n / 3; }},
    {"n / 2047", [](HostFloats& f, Id n) { return with(f, Op::div, n, 2047); }, [](double n) { return n / 2047; }},
    {"n / 0.25", [](HostFloats& f, Id n) { return with(f, Op::div, n, 0.25); }, [](double n) { return n / 0.25; }},
    {"n / 1.5", [](HostFloats& f, Id n) { return with(f, Op::div, n, 1.5); }, [](double n) { return n / 1.5; }},
    {"(n + 1) / 2", [](HostFloats& f, Id n) { return with(f, Op::div, with(f, Op::add, n, 1), 2); }, [](double n) { return (n + 1) / 2; }},
    {"n * 0.75 - 1.25", [](HostFloats& f, Id n) { return with(f, Op::sub, with(f, Op::mul, n, 0.75), 1.25); },
     [](double n) { return n * 0.75 - 1.25; }},
    {"-(n * 1.5) / 7", [](HostFloats& f, Id n) { return with(f, Op::div, f.compute(Op::neg, with(f, Op::mul, n, 1.5)), 7); },
     [](double n) { return -(n * 1.5) / 7; }},
};

const Program kUnknown[] = {
    {"n * 0.7", [](HostFloats& f, Id n) { return with(f, Op::mul, n, 0.7); }, {}},
    {"n / 3 * 3", [](HostFloats& f, Id n) { return with(f, Op::mul, with(f, Op::div, n, 3), 3); }, {}},
    {"n / 3 + 1", [](HostFloats& f, Id n) { return with(f, Op::add, with(f, Op::div, n, 3), 1); }, {}},
    {"n / -2", [](HostFloats& f, Id n) { return with(f, Op::div, n, -2); }, {}},
    {"n / 4099", [](HostFloats& f, Id n) { return with(f, Op::div, n, 4099); }, {}},
    {"n * n / 3", [](HostFloats& f, Id n) { return with(f, Op::div, f.compute(Op::mul, n, n), 3); }, {}},
    {"n ** 0.5", [](HostFloats& f, Id n) { return with(f, Op::pow, n, 0.5); }, {}},
    {"n * 1e300", [](HostFloats& f, Id n) { return with(f, Op::mul, n, 1e300); }, {}},
    {"n + inf", [](HostFloats& f, Id n) { return with(f, Op::add, n, HUGE_VAL); }, {}},
};

}  // namespace

TEST_CASE("whole parts: as the number's own, for sizes within the bounds") {
  std::mt19937_64 random(1);
  for (const Program& p : kKnown) {
    HostFloats f;
    const Id id = p.build(f, f.size(SymInt::symbol(0), 12, false));
    INFO(std::string(p.text));
    const auto down = whole_part(f, id, false), up = whole_part(f, id, true);
    REQUIRE(down);
    REQUIRE(up);
    for (int i = 0; i < 20000; ++i) {
      int64_t n = static_cast<int64_t>(random() % static_cast<uint64_t>(kMostOfSize));
      n = (n >> (random() % 40)) / 2047 * 2047 + static_cast<int64_t>(random() % 3) - 1;  // beside multiples
      if (i % 2 == 1) n = -n;
      if (std::abs(n) >= kMostOfSize) continue;
      const int64_t sizes[] = {n};
      const double value = p.value(static_cast<double>(n));
      if (down->eval(sizes) != static_cast<int64_t>(std::floor(value)) || up->eval(sizes) != static_cast<int64_t>(std::ceil(value)))
        FAIL("of ", n, ": ", down->eval(sizes), " and ", up->eval(sizes));
    }
  }
}

TEST_CASE("whole parts: nothing where roundings may matter") {
  for (const Program& p : kUnknown) {
    HostFloats f;
    INFO(std::string(p.text));
    CHECK(!whole_part(f, p.build(f, f.size(SymInt::symbol(0), 12, false)), false));
  }
  HostFloats f;
  CHECK(!whole_part(f, f.given(0, 2.5), false));
  CHECK(!whole_part(f, with(f, Op::div, f.size(SymInt::symbol(0), 12, true), 2), false));
}

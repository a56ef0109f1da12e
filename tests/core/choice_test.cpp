#include "target/cpu/choice.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

using broach::Pace;
using broach::cpu::Candidate;
using broach::cpu::Choice;

namespace {

constexpr Choice::Set kAll = Choice::set_of(Candidate::plain) | Choice::set_of(Candidate::packed) | Choice::set_of(Candidate::host);

// Runs until it is decided: seconds by candidate.
int runs_until_decided(Choice& choice, std::span<const double> seconds, Choice::Set available) {
  int runs = 0;
  for (; !choice.decided() && runs < 1000; ++runs) {
    Candidate c = choice.next(available);
    REQUIRE((available & Choice::set_of(c)));
    choice.record(c, seconds[static_cast<size_t>(c)]);
  }
  return runs;
}

int runs_until_decided(Choice& choice, std::array<double, 3> seconds, Choice::Set available = kAll) {
  return runs_until_decided(choice, std::span<const double>(seconds), available);
}

}  // namespace

TEST_CASE("choice: the fastest wins if its margin is clear") {
  Choice clear(Candidate::plain, kAll), close(Candidate::plain, kAll), last(Candidate::plain, kAll);
  CHECK(runs_until_decided(clear, {1.0, 0.8, 0.9}) == 12);
  CHECK(clear.decided() == Candidate::packed);
  runs_until_decided(close, {1.0, 0.97, 1.2});
  CHECK(close.decided() == Candidate::plain);
  runs_until_decided(last, {1.0, 0.9, 0.5});
  CHECK(last.decided() == Candidate::host);
  CHECK(clear.text() == "plain 1000000 us, packed 800000 us, aten 900000 us");
}

TEST_CASE("choice: a packed weight has to be worth its memory, over whatever is the best without") {
  struct Case {
    Candidate rule;
    std::array<double, 3> seconds;
    Candidate wins;
  };
  for (const Case& c :
       {Case{Candidate::host, {0.80, 0.78, 1.00}, Candidate::plain}, Case{Candidate::host, {0.80, 0.75, 1.00}, Candidate::packed},
        Case{Candidate::packed, {0.80, 0.78, 1.00}, Candidate::plain}, Case{Candidate::packed, {0.80, 0.75, 0.70}, Candidate::host},
        Case{Candidate::packed, {0.80, 0.70, 1.00}, Candidate::packed}, Case{Candidate::plain, {1.00, 0.90, 0.93}, Candidate::host}}) {
    Choice choice(c.rule, kAll);
    runs_until_decided(choice, c.seconds);
    CHECK(choice.decided() == c.wins);
  }
}

TEST_CASE("choice: of two that take the packed weight the faster one wins, if it is worth its memory") {
  constexpr Choice::Set kFour = kAll | Choice::set_of(Candidate::tiles);
  struct Case {
    std::array<double, 4> seconds;
    Candidate wins;
    double packed;
  };
  for (const Case& c : {Case{{1.0, 0.80, 1.0, 0.79}, Candidate::tiles, 0.79}, Case{{1.0, 0.79, 1.0, 0.80}, Candidate::packed, 0.79},
                        Case{{1.0, 1.10, 1.2, 0.97}, Candidate::plain, 0.97}, Case{{1.0, 1.10, 1.2, 0.90}, Candidate::tiles, 0.90}}) {
    Choice choice(Candidate::plain, kFour);
    runs_until_decided(choice, c.seconds, kFour);
    CHECK(choice.decided() == c.wins);
    REQUIRE(choice.gain());
    CHECK(choice.gain()->packed == c.packed);
    CHECK(choice.gain()->unpacked == 1.0);
  }
}

TEST_CASE("choice: what a packed weight brings is known once it is decided") {
  Choice choice(Candidate::host, kAll), alone(Candidate::packed, Choice::set_of(Candidate::packed));
  const uint64_t news = broach::PackingNews::count();
  CHECK_FALSE(choice.gain());
  runs_until_decided(choice, {0.8, 0.6, 1.0});
  CHECK(broach::PackingNews::count() > news);
  REQUIRE(choice.gain());
  CHECK(choice.gain()->packed == 0.6);
  CHECK(choice.gain()->unpacked == 0.8);
  runs_until_decided(alone, {0.8, 0.6, 1.0});
  CHECK_FALSE(alone.gain());
}

TEST_CASE("choice: one slow run of many does not count") {
  Choice choice(Candidate::plain, kAll);
  for (int run = 0; !choice.decided(); ++run) {
    Candidate c = choice.next(kAll);
    choice.record(c, c == Candidate::packed && run > 2 ? 9.0 : c == Candidate::packed ? 0.5 : 1.0);
  }
  CHECK(choice.decided() == Candidate::packed);
}

TEST_CASE("choice: what is never available is not waited for") {
  Choice choice(Candidate::packed, kAll);
  auto without = kAll & ~Choice::set_of(Candidate::packed);
  CHECK(runs_until_decided(choice, {1.0, 0, 0.5}, without) < 200);
  CHECK(choice.decided() == Candidate::host);
}

TEST_CASE("choice: one for each shape, from any number of threads") {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([] {
      auto choice = Choice::of("shape of this test", Candidate::plain, kAll);
      while (!choice->decided()) {
        Candidate c = choice->next(kAll);
        choice->record(c, c == Candidate::host ? 0.5 : 1.0);
      }
    });
  for (auto& t : threads) t.join();
  CHECK(Choice::of("shape of this test", Candidate::plain, kAll)->decided() == Candidate::host);
  CHECK_FALSE(Choice::of("another shape", Candidate::plain, kAll)->decided());
}

namespace {

// Calls of a program with so many products of one shape, of 1 s each, until it is decided; the longest call.
double slowest_call(Choice& choice, const std::array<double, 3>& seconds, int products, int& calls) {
  Pace pace;
  double slowest = 0;
  for (calls = 0; !choice.decided() && calls < 1000; ++calls) {
    double call = 0;
    for (int i = 0; i < products; ++i) {
      Candidate c = choice.next(kAll, &pace);
      choice.record(c, seconds[static_cast<size_t>(c)], &pace);
      call += seconds[static_cast<size_t>(c)];
    }
    pace.finish(call, true);
    slowest = std::max(slowest, call);
  }
  return slowest;
}

}  // namespace

TEST_CASE("choice: trials are spread over calls") {
  int calls = 0;
  Choice many(Candidate::host, kAll);
  CHECK(slowest_call(many, {1.3, 0.8, 1.0}, 12, calls) < 1.1 * 12);
  CHECK(calls >= 4);
  CHECK(many.decided() == Candidate::packed);
}

TEST_CASE("choice: that another was faster once makes no trial of what runs anyway") {
  std::vector<std::unique_ptr<Choice>> shapes;
  for (int i = 0; i < 25; ++i) shapes.push_back(std::make_unique<Choice>(Candidate::host, kAll & ~Choice::set_of(Candidate::plain)));
  Pace pace;
  int calls = 0;
  for (bool all = false; !all && calls < 200; ++calls) {
    double call = 0;
    all = true;
    for (auto& shape : shapes) {
      const Candidate c = shape->next(kAll, &pace);
      const double seconds = c == Candidate::host ? 3.0 : 1.0;
      shape->record(c, seconds, &pace, kAll);
      call += seconds;
      all = all && shape->decided();
    }
    pace.finish(call, true);
  }
  CHECK(calls < 40);  // as many as a shape each in a call would be 75 and more
  for (auto& shape : shapes) CHECK(shape->decided() == Candidate::packed);
}

TEST_CASE("choice: what is far slower is not tried again for long") {
  Choice choice(Candidate::host, kAll);
  Pace pace;
  int slow = 0;
  for (int call = 0; call < 200 && !choice.decided(); ++call) {
    Candidate c = choice.next(kAll, &pace);
    double took = c == Candidate::plain ? 5.0 : 1.0;
    slow += c == Candidate::plain;
    choice.record(c, took, &pace);
    pace.finish(took, true);
  }
  CHECK(slow <= 2);
  CHECK(choice.decided() == Candidate::host);
}

TEST_CASE("choice: a disturbed call does not decide") {
  Choice choice(Candidate::host, kAll);
  Pace pace;
  for (int call = 0; !choice.decided(); ++call) {
    double disturbed = call == 1 ? 40.0 : 1.0, total = 0;
    for (int i = 0; i < 12; ++i) {
      Candidate c = choice.next(kAll, &pace);
      double took = disturbed * (c == Candidate::packed ? 0.5 : 1.0);
      choice.record(c, took, &pace);
      total += took;
    }
    pace.finish(total, true);
  }
  CHECK(choice.decided() == Candidate::packed);
}

TEST_CASE("choice: a pick that runs much slower than measured is measured again") {
  Choice choice(Candidate::plain, kAll);
  runs_until_decided(choice, {1.0, 0.5, 0.9});
  for (int i = 0; i < 31; ++i) choice.record(Candidate::packed, 2.0);
  choice.record(Candidate::packed, 0.6);
  for (int i = 0; i < 31; ++i) choice.record(Candidate::packed, 2.0);
  CHECK(choice.decided() == Candidate::packed);
  for (int i = 0; i < 4; ++i) choice.record(Candidate::packed, 2.0);
  CHECK_FALSE(choice.decided());
  runs_until_decided(choice, {1.0, 2.0, 0.5});
  CHECK(choice.decided() == Candidate::host);
}

TEST_CASE("pace: packing takes a small share of each call, and more once something is gained") {
  Pace pace;
  constexpr size_t kBytes = 1000000;  // 1 ms each, of calls of 100 ms
  auto packs_in_a_call = [&](double call) {
    int packed = 0;
    for (; packed < 1000 && pace.affords_packing(kBytes); ++packed) pace.packed(kBytes, 1e-3);
    pace.finish(call, true);
    return packed;
  };
  CHECK(packs_in_a_call(0.1) == 0);
  int all = 0;
  for (int call = 0; call < 14; ++call) {
    int packed = packs_in_a_call(0.1);
    CHECK(packed <= 12);
    all += packed;
  }
  CHECK(all > 50);
  CHECK(all <= 100);
  packs_in_a_call(0.05);
  CHECK(packs_in_a_call(0.05) > 30);
}

TEST_CASE("pace: what costs more than a call may spend is saved for") {
  Pace pace;
  pace.finish(0.01, true);
  int calls = 0;
  for (; calls < 100 && !pace.affords_packing(5000000); ++calls) pace.finish(0.01, true);
  CHECK(calls > 3);
  CHECK(calls < 15);
}

TEST_CASE("choice: shapes that nobody asks for any more are forgotten") {
  auto held = Choice::of("a shape that is held", Candidate::plain, kAll);
  runs_until_decided(*held, {1.0, 2.0, 2.0});
  for (size_t i = 0; i < Choice::kMostShapes; ++i) Choice::of("one of many shapes " + std::to_string(i), Candidate::plain, kAll);
  CHECK(held->decided() == Candidate::plain);
  CHECK_FALSE(Choice::of("a shape that is held", Candidate::plain, kAll)->decided());
}

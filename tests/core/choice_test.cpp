#include "target/cpu/choice.h"

#include <doctest/doctest.h>

#include <array>
#include <thread>
#include <vector>

using broach::cpu::Candidate;
using broach::cpu::Choice;

namespace {

constexpr Choice::Set kAll = Choice::set_of(Candidate::plain) | Choice::set_of(Candidate::packed) | Choice::set_of(Candidate::host);

// Runs until it is decided: seconds by candidate.
int runs_until_decided(Choice& choice, std::array<double, 3> seconds, Choice::Set available = kAll) {
  int runs = 0;
  for (; !choice.decided() && runs < 1000; ++runs) {
    Candidate c = choice.next(available);
    REQUIRE((available & Choice::set_of(c)));
    choice.record(c, seconds[static_cast<size_t>(c)]);
  }
  return runs;
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

// Which of several implementations of a matrix product is the fastest, measured while programs run.
//
// A rule names the one to begin with. The first runs of a shape try the others by turns, so that measuring costs nothing
// extra, and the fastest is kept if it wins by a clear margin. The answer holds for the shape in the whole process.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace broach::cpu {

enum class Candidate : uint8_t { plain, packed, host };  // the library's, with the weight as it is or rearranged; the host's own

class Choice {
 public:
  // A set of candidates.
  using Set = unsigned;
  static constexpr Set set_of(Candidate c) { return 1u << static_cast<unsigned>(c); }

  // The one of the process for this shape. Rule and candidates are those of whoever asks first: they follow from the shape.
  static std::shared_ptr<Choice> of(const std::string& shape, Candidate rule, Set candidates);

  Choice(Candidate rule, Set candidates) : rule_(rule), candidates_(candidates) {}

  // Nothing while it is being measured.
  std::optional<Candidate> decided() const {
    int d = decided_.load(std::memory_order_acquire);
    return d < 0 ? std::nullopt : std::optional(static_cast<Candidate>(d));
  }
  bool tries(Candidate c) const { return candidates_ & set_of(c); }
  // What to run next of these; the time that it took is then to be recorded.
  Candidate next(Set available);
  void record(Candidate c, double seconds);
  // The times, for `explain`.
  std::string text() const;

 private:
  struct Times {
    int runs = 0;
    double fastest = 0;
  };
  void decide();

  const Candidate rule_;
  const Set candidates_;
  mutable std::mutex mutex_;
  std::array<Times, 3> times_{};
  int runs_ = 0;
  std::atomic<int> decided_{-1};
};

}  // namespace broach::cpu

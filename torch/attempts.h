// What a program is captured with, what comes of it, and what is tried next.
//
// The table of what follows is in attempts.cpp. Whoever finds that a recording cannot stand for the program says so by a Verdict:
// the outcome decides, the text is only told.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace broach {

// What comes of an attempt to capture a program.
enum class Outcome {
  compiled,
  refuses_symbols,  // it does not bear what stands for its sizes, numbers or values, and is as if it had not run
  lacks_stand_ins,  // as if it had not run, because of the next
  wants_stand_ins,  // it goes by values or sizes that only stand-ins let it be compiled for
  wants_apart,      // inputs have a history that leads to what else it reads: gradients end there only if something stands for them
  unclear,          // its host code may have state: the next run tells
  needs_gradients,  // no backward is compiled
  learnt,           // rejected by the front, which knows by now what to do otherwise
  spoilt,           // rejected, mostly by the front, for what may happen this once
  rejected,         // rejected by the front for good
  unsupported,      // what no other inputs change
  bug,              // in Broach
  error,            // the program's own
};
const char* name_of(Outcome outcome);
// Whether the program is as if it had not run.
bool is_undone(Outcome outcome);

// Who may run the program where no attempt gives one; what leaves less to TorchDynamo comes later.
enum class Fallback {
  torch_compile,  // TorchDynamo, whose own functions the program calls
  dynamo,         // TorchDynamo, which compiles what it can, if that is asked for; else eager
  in_parts,       // the same, and it would take the program apart, since data decides the way
  eager,          // not TorchDynamo, which is known to answer otherwise than eager
  nothing,        // eager even where the whole program is to be compiled: compiling does not pay, or no code runs in the call
};
const char* name_of(Fallback fallback);

struct Reason {
  Reason() = default;
  Reason(std::string why, Fallback instead = Fallback::dynamo) : text(std::move(why)), fallback(instead) {}
  Reason(const char* why, Fallback instead = Fallback::dynamo) : text(why), fallback(instead) {}
  bool empty() const { return text.empty(); }
  // The same as a part of a longer text.
  Reason within(const std::string& before, const std::string& behind = "") const { return {before + text + behind, fallback}; }

  std::string text;
  Fallback fallback = Fallback::dynamo;
};

struct Verdict {
  Outcome outcome = Outcome::compiled;
  Reason reason;
  bool is_good() const { return outcome == Outcome::compiled; }
  bool is_of_front() const { return outcome == Outcome::learnt || outcome == Outcome::spoilt || outcome == Outcome::rejected; }
};

// What a program is captured with, as bits.
using With = uint8_t;
constexpr With kPlain = 0;
constexpr With kSizes = 1;     // symbols for the sizes of inputs that differ from call to call
constexpr With kNumbers = 2;   // symbols for the numbers that it is given
constexpr With kApart = 8;     // what stands for inputs with a history
constexpr With kStandIns = 4;  // what stands for values that it computes and reads on the host, and for sizes that depend on data
std::string name_of(With with);

struct Attempt {
  With with = kPlain;
  Verdict verdict;
  double capture_seconds = 0, compile_seconds = 0;
  std::string then;  // what the table says of the next one, if that differs

  std::string str() const;
};

// A row of the table: what is tried after an outcome of an attempt with these, in what order and why.
struct Next {
  uint32_t outcomes;
  With with;         // the attempt had these
  With drops, adds;  // dropped for good; added unless they were dropped before
  With sets_aside;   // left out, but not for good
  bool at_once;      // in the same call; else in the next that is captured
  const char* because;
};

// What the next attempt is made with.
class Plan {
 public:
  bool has(With with) const { return (with_ & with) == with; }
  // Moves on by the first row that fits; null if there is nothing else to try. Where more than what has given a program before is refused,
  // that comes first.
  const Next* follow(Outcome outcome, With with);
  void add(With with) { with_ |= with; }

 private:
  const Next* go_back(With with);

  With with_ = kSizes | kNumbers, dropped_ = kPlain;
  std::vector<With> compiled_;  // with what stands for values
};

// Why a front captures anew after this outcome, with `in_a_row` others before; null if it gives up.
const char* why_anew(Outcome outcome, int in_a_row);

// The last attempts of one program, over all of its versions.
class AttemptLog {
 public:
  void add(Attempt attempt);
  std::vector<Attempt> list() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::deque<Attempt> attempts_;
};

}  // namespace broach

#include "attempts.h"

#include <algorithm>
#include <bit>

#include "support/error.h"
#include "support/log.h"

namespace broach {

namespace {

constexpr uint32_t of(Outcome outcome) { return uint32_t{1} << static_cast<int>(outcome); }
constexpr uint32_t kUndone = of(Outcome::refuses_symbols) | of(Outcome::lacks_stand_ins);
constexpr const char* kKnownAsItRuns = "what it reads or selects is known only as it runs";
constexpr uint32_t kNoProgram = of(Outcome::wants_stand_ins) | of(Outcome::learnt) | of(Outcome::spoilt) | of(Outcome::rejected) |
                                of(Outcome::unsupported) | of(Outcome::bug);

// The first row that fits counts.
constexpr Next kNext[] = {
    {of(Outcome::lacks_stand_ins), kPlain, kPlain, kStandIns, kPlain, true, kKnownAsItRuns},
    {of(Outcome::refuses_symbols), kStandIns | kSizes, kPlain, kPlain, kSizes, true,
     "what stands for its values may do without what stands for sizes"},
    {of(Outcome::refuses_symbols), kStandIns, kStandIns, kSizes, kPlain, true,
     "what stands for its values asks for more than what stands for sizes"},
    {of(Outcome::refuses_symbols), kStandIns, kStandIns, kPlain, kPlain, true, "what stands for its values asks for more than numbers do"},
    {kUndone, kNumbers, kNumbers, kPlain, kPlain, true, "a number that it is given is a count of layers as often as a size"},
    {kUndone, kSizes, kSizes, kPlain, kPlain, true, "its sizes stay numbers"},
    {kNoProgram, kStandIns, kStandIns, kPlain, kPlain, false, "it has run, and may be compiled without what stands for its values"},
    {of(Outcome::wants_stand_ins), kPlain, kPlain, kStandIns, kPlain, false, kKnownAsItRuns},
    {kNoProgram, kSizes, kSizes, kPlain, kPlain, false, "it has run, and may be compiled with its sizes as numbers"},
    {of(Outcome::wants_apart), kPlain, kPlain, kApart, kPlain, false, "what stands for an input has no history that leads elsewhere"},
};

constexpr Next kBack = {
    of(Outcome::refuses_symbols), kStandIns, kPlain, kPlain, kPlain, true, "without the others it has given a program before"};

// What a front does after its own verdicts.
struct Anew {
  Outcome outcome;
  int most;  // in a row; 0: any number
  const char* because;
};
constexpr Anew kAnew[] = {
    {Outcome::learnt, 0, "the next attempt leaves alone what this one found written"},
    {Outcome::spoilt, 3, "what happens once only, such as a lazily filled cache, then passes"},
};

}  // namespace

const char* name_of(Outcome outcome) {
  static constexpr const char* names[] = {"compiled",
                                          "refuses symbols",
                                          "lacks stand-ins",
                                          "wants stand-ins",
                                          "wants inputs apart",
                                          "unclear",
                                          "needs gradients",
                                          "learnt",
                                          "spoilt",
                                          "rejected",
                                          "unsupported",
                                          "bug",
                                          "error"};
  return names[static_cast<size_t>(outcome)];
}

const char* name_of(Fallback fallback) {
  static constexpr const char* names[] = {"torch.compile", "dynamo", "in parts", "eager", "nothing"};
  return names[static_cast<size_t>(fallback)];
}

bool is_undone(Outcome outcome) { return (kUndone & of(outcome)) != 0; }

std::string name_of(With with) {
  std::string out;
  for (auto [bit, name] : {std::pair{kSizes, "sizes"}, {kNumbers, "numbers"}, {kStandIns, "values"}})
    if (with & bit) out += (out.empty() ? "symbols for " : ", ") + std::string(name);
  if (with & kApart) out += cat(out.empty() ? "" : ", ", "inputs apart");
  return out.empty() ? "plain" : out;
}

std::string Attempt::str() const {
  return cat(name_of(with), ": ", name_of(verdict.outcome), verdict.reason.empty() ? "" : ": ", verdict.reason.text,
             then.empty() ? "" : " -> ", then);
}

// To the most of this that has given a program with what stands for values.
const Next* Plan::go_back(With with) {
  With most = kPlain;
  for (const With c : compiled_)
    if (c != with && (c & with) == c && std::popcount(c) > std::popcount(most)) most = c;
  if (most == kPlain) return nullptr;
  const auto drops = static_cast<With>(with & ~most);
  dropped_ |= drops;
  with_ = static_cast<With>(with_ & ~drops);
  return &kBack;
}

const Next* Plan::follow(Outcome outcome, With with) {
  if (outcome == Outcome::compiled && (with & kStandIns) && std::ranges::find(compiled_, with) == compiled_.end())
    compiled_.push_back(with);
  if (outcome == Outcome::refuses_symbols)
    if (const Next* back = go_back(with)) return back;
  auto fits = [&](const Next& n) {
    return (n.outcomes & of(outcome)) && (n.with & with) == n.with && (!n.adds || (n.adds & ~(with_ | dropped_)));
  };
  auto next = std::find_if(std::begin(kNext), std::end(kNext), fits);
  if (next == std::end(kNext)) return nullptr;
  dropped_ |= next->drops;
  with_ = static_cast<With>((with_ & ~(next->drops | next->sets_aside)) | next->adds);
  return next;
}

const char* why_anew(Outcome outcome, int in_a_row) {
  auto fits = [&](const Anew& a) { return a.outcome == outcome && (a.most == 0 || in_a_row + 1 < a.most); };
  auto row = std::find_if(std::begin(kAnew), std::end(kAnew), fits);
  return row == std::end(kAnew) ? nullptr : row->because;
}

void AttemptLog::add(Attempt attempt) {
  constexpr size_t kMost = 64;
  log_info("captured with ", attempt.str());
  std::lock_guard lock(mutex_);
  attempts_.push_back(std::move(attempt));
  if (attempts_.size() > kMost) attempts_.pop_front();
}

std::vector<Attempt> AttemptLog::list() const {
  std::lock_guard lock(mutex_);
  return {attempts_.begin(), attempts_.end()};
}

void AttemptLog::clear() {
  std::lock_guard lock(mutex_);
  attempts_.clear();
}

}  // namespace broach

// Launches of a part of a program, kept by its target.
#pragma once

namespace broach {

struct RunContext;

// The first time, each step runs once with a context that has the recording, and nothing is done yet. A step that is a kernel may then
// run again so, on other addresses and numbers, in whose place it is kept from then on; all else stays as it was.
class Recording {
 public:
  virtual ~Recording() = default;
  // While it is the first time: steps that do not need each other may be launched beside one another, in so many lanes, until they are
  // joined. False where there is one queue only.
  virtual bool fork(int /*lanes*/) { return false; }
  virtual void enter(int /*lane*/, RunContext& /*run*/) {}
  virtual void join(RunContext& /*run*/) {}
  // The first time is over. Throws an Error if the launches cannot be kept.
  virtual void finish() = 0;
  // Puts all of them into the queue of the run.
  virtual void replay(const RunContext& run) = 0;
};

}  // namespace broach

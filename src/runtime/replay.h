// Steps of a program whose launches are kept, and made again at once where a call brings what was there before.
//
// What takes its launches from a library cannot be told other addresses, so a recording stands for the addresses that such steps
// touch; torch's allocator gives the same ones again in programs that repeat. Kernels are told theirs. Nothing is recorded before the
// same addresses come a second time, and only so many recordings are made. What calls of the host's library give in a recording lies in
// memory of the recording's own, and whoever reads it behind the recording gets a copy.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "target/target.h"

namespace broach {

// Memory that is kept for the next user in the same queue, where what is done is done in turn: that of recordings, whose launches go on
// naming it, each at once, or small arenas, each taken as long as a call makes launches. Never both, as launches of one call may lie
// between those of another.
class KeptMemory {
 public:
  KeptMemory() = default;
  ~KeptMemory();
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;
  Memory::Piece take(int64_t bytes, void* queue, Memory& source);
  void give(const Memory::Piece& piece);

 private:
  struct Kept {
    Memory::Piece piece;
    void* queue;
    Memory* source;
    bool is_taken;
  };
  std::mutex mutex_;
  std::vector<Kept> kept_;
};

// The same as memory of one queue, whatever queue it is asked for: a recording's own is not the one that it will be launched into.
class MemoryOfQueue : public Memory {
 public:
  MemoryOfQueue(KeptMemory& kept, void* queue, Memory& source) : kept_(kept), queue_(queue), source_(source) {}
  Piece take(int64_t bytes, void*) override { return kept_.take(bytes, queue_, source_); }
  void give(Piece piece, void*) override { kept_.give(piece); }

 private:
  KeptMemory& kept_;
  void* queue_;
  Memory& source_;
};

struct Frame;

// The calls of the host's library in one recording; made by the front.
class RecordedCalls {
 public:
  virtual ~RecordedCalls() = default;
  // What the call launches goes into this queue, and the memory that it takes stays the recording's. Throws an Error if the call cannot be
  // recorded.
  virtual void run(void* queue, const std::function<void()>& call) = 0;
  // What a call has given is read behind the recording.
  virtual void keep(Frame& frame, int buffer) = 0;
  // No call is recorded from here on.
  virtual void finish() {}
  // Copies of what is kept, made in the run's queue.
  virtual void give(Frame& frame) const = 0;
};

// Memory that a step reads or writes. `own`: whose it is, equal for all buffers that lie in one memory; -1: an intermediate, which
// may lie where others did.
struct MemoryUse {
  int buffer = -1, own = -1;
  int64_t bytes = -1;  // -1: not known
  bool is_written = false;
};

// What a step of a segment touches.
struct StepUse {
  bool is_kernel = false;
  bool has_numbers = false;  // which may be others in each call
  std::vector<int> buffers;
  bool is_call = false;                       // of the host's library
  std::vector<int> made;                      // buffers whose memory the call brings
  std::vector<int> given;                     // those of them that are read behind the segment
  bool is_small = false, is_product = false;  // leaves room on the device for another
  std::vector<MemoryUse> memory;              // of a small one
  bool launches_many = false;                 // a call that is worth a recording of its own
};

// Of launches that are made at once.
struct RecordingCounts {
  int made = 0;
  int64_t runs = 0, replays = 0;  // of parts of programs that could be launched so, and those of them that were

  RecordingCounts& operator+=(const RecordingCounts& other) {
    made += other.made, runs += other.runs, replays += other.replays;
    return *this;
  }
};

// Consecutive steps of one target.
class ReplayedSteps {
 public:
  using RunStep = std::function<void(size_t step, RunContext& context)>;
  static constexpr size_t kFewest = 3;  // steps that are worth it
  static constexpr int64_t kSmallPiece = int64_t{1} << 20;

  // `made_bytes`: of what calls give and take at the same time, as far as it is known, in pieces of more than kSmallPiece.
  ReplayedSteps(size_t first, std::span<const StepUse> uses, size_t part = 0, int64_t made_bytes = 0);
  size_t first() const { return first_; }
  size_t part() const { return part_; }  // of the program's, on whose device they run
  size_t end() const { return first_ + uses_.size(); }
  // False where they are to be run one by one.
  bool run(const Target& target, const RunContext& context, Frame& frame, KeptMemory& memory, const RunStep& step);
  bool makes(int buffer) const;
  RecordingCounts counts() const { return {made_, runs_, replays_}; }

 private:
  using Key = std::vector<uintptr_t>;
  struct Kept {
    Key key;
    std::unique_ptr<RecordedCalls> calls;  // null: there are none
    std::unique_ptr<Recording> recording;
    std::vector<void*> made;  // addresses of `made_by_calls_`
    std::vector<void*> told;  // of `loose_`, as the kernels were told last
    uint64_t used = 0;        // when, last
    uint64_t uses = 0;
  };

  // A kernel, and where its buffers are in `loose_`.
  struct Told {
    size_t step;
    bool always;  // it has numbers
    std::vector<size_t> buffers;
  };

  // Those of `loose_` from `first` on that are consecutive buffers: programs hold hundreds, and their addresses are compared at once.
  struct Neighbours {
    size_t first, count;
  };

  bool has_calls() const;
  void find_tellable();
  void find_key(const RunContext& context, std::span<void* const> data);
  Kept* find();
  void forget_idle();
  bool is_due();
  Kept* record(const Target& target, const RunContext& context, Frame& frame, KeptMemory& memory, const RunStep& step);
  void record_step(size_t i, Kept& fresh, RunContext& keeping, Frame& frame, const RunStep& step) const;
  size_t steps_beside(size_t i, std::span<void* const> data) const;
  void record_beside(size_t i, size_t end, Kept& fresh, RunContext& keeping, Frame& frame, const RunStep& step) const;
  void place_made(const Kept& kept, Frame& frame) const;
  void forget_made(Frame& frame) const;
  void tell(Kept& kept, const RunContext& context, std::span<void* const> data, const RunStep& step);
  void give_up(const std::string& why);

  const size_t first_, part_;
  const int64_t made_bytes_;
  const std::vector<StepUse> uses_;
  std::vector<int> fixed_, loose_;  // buffers that other steps than kernels touch, and that kernels do, each in order
  std::vector<Neighbours> runs_of_loose_;
  std::vector<Told> told_;          // steps that are told of changes
  std::vector<int> made_by_calls_;  // which are neither
  std::mutex mutex_;
  Key key_;  // of the call under way
  std::vector<Kept> kept_;
  std::array<size_t, 8> seen_{};  // hashes of keys for which there is no recording
  uint64_t clock_ = 0;
  // Read while another thread runs.
  std::atomic<int> made_ = 0;
  std::atomic<int64_t> runs_ = 0, replays_ = 0;
  bool is_hopeless_ = false;
};

}  // namespace broach

// Steps of a program whose launches are kept, and made again at once where a call brings what was there before.
//
// What takes its launches from a library cannot be told other addresses, so a recording stands for the addresses that such steps
// touch; torch's allocator gives the same ones again in programs that repeat. Kernels are told theirs. Nothing is recorded before the
// same addresses come a second time, and only so many recordings are made.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "target/target.h"

namespace broach {

// Memory that recordings go on using, since their launches name it. What is done in one queue is done in turn, so its recordings
// share it.
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

// What a step of a segment touches.
struct StepUse {
  bool is_kernel = false;
  bool has_numbers = false;  // which may be others in each call
  std::vector<int> buffers;
};

// Consecutive steps of one target.
class ReplayedSteps {
 public:
  using RunStep = std::function<void(size_t step, RunContext& context)>;
  static constexpr size_t kFewest = 3;  // steps that are worth it

  ReplayedSteps(size_t first, std::span<const StepUse> uses);
  size_t first() const { return first_; }
  size_t end() const { return first_ + uses_.size(); }
  // False where they are to be run one by one. `data`: addresses by buffer.
  bool run(const Target& target, const RunContext& context, std::span<void* const> data, KeptMemory& memory, const RunStep& step);
  int recordings() const { return made_; }

 private:
  using Key = std::vector<uintptr_t>;
  struct Kept {
    Key key;
    std::unique_ptr<Recording> recording;
    std::vector<void*> told;  // addresses of `loose_`, as the kernels were told last
    uint64_t used = 0;
  };

  void find_key(const RunContext& context, std::span<void* const> data);
  Kept* find();
  bool is_due();
  Kept* record(const Target& target, const RunContext& context, std::span<void* const> data, KeptMemory& memory, const RunStep& step);
  void tell(Kept& kept, const RunContext& context, std::span<void* const> data, const RunStep& step);
  void give_up(const std::string& why);

  const size_t first_;
  const std::vector<StepUse> uses_;
  std::vector<int> fixed_, loose_;  // buffers that other steps than kernels touch, and that kernels do
  std::mutex mutex_;
  Key key_;  // of the call under way
  std::vector<Kept> kept_;
  std::array<size_t, 8> seen_{};  // hashes of keys for which there is no recording
  uint64_t clock_ = 0;
  int made_ = 0;
  bool is_hopeless_ = false;
};

}  // namespace broach

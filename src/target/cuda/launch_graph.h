// Launches of steps as one CUDA graph.
#pragma once

#include <map>
#include <vector>

#include "target/cuda/libraries.h"
#include "target/target.h"

namespace broach::cuda {

// A launch of a generated kernel, all of whose parameters have 64 bits.
struct Launch {
  Function function = nullptr;
  unsigned blocks = 0, width = 0, height = 0;  // of a block: threads along x and y
  std::vector<uint64_t> parameters;
  friend bool operator==(const Launch&, const Launch&) = default;
};

class LaunchGraph : public Recording {
 public:
  // Whether graphs may be launched into a queue: not where its launches become nodes of the caller's own.
  static bool is_possible(const RunContext& run);
  LaunchGraph();
  ~LaunchGraph() override;
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;

  Stream queue() const { return stream_; }
  void keep(int step, Launch launch);
  bool fork(int lanes) override;
  void enter(int lane, RunContext& run) override;
  void join(RunContext& run) override;
  void finish() override;
  void replay(const RunContext& run) override;

 private:
  struct Kept {
    Node node = nullptr;
    Launch launch;
  };
  // The second queue goes on when the first one is where it is now.
  void order(Stream first, Stream second);
  void end_capture();
  void add(int step, Launch launch);
  Node last_node() const;

  const Driver& driver_ = Driver::get();
  const int device_;
  Stream stream_ = nullptr;    // until it is finished
  Stream current_ = nullptr;   // where launches go
  std::vector<Stream> lanes_;  // besides it
  size_t forked_ = 0;          // of them in use
  int mode_ = 2;               // this thread's before, until it is finished; 2: it may do what captures elsewhere would forbid
  Graph graph_ = nullptr;
  GraphCall call_ = nullptr;
  std::map<int, Kept> kept_;  // by step
};

}  // namespace broach::cuda

#include "target/cuda/launch_graph.h"

#include <mutex>

#include "support/error.h"
#include "target/cuda/fills.h"

namespace broach::cuda {

namespace {

constexpr int kRelaxed = 2;           // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr unsigned kNoTiming = 2;     // CU_EVENT_DISABLE_TIMING

// Queues of a device's recordings. Each is used again: memory that a recording of libtorch's calls gave back is for others of its queue.
class RecordingStreams {
 public:
  static Stream take(int device) {
    {
      const std::lock_guard lock(mutex());
      std::vector<Stream>& known = free()[device];
      if (!known.empty()) {
        const Stream last = known.back();
        known.pop_back();
        return last;
      }
    }
    Stream made = nullptr;
    Driver::get().check(Driver::get().stream_make(&made, kNonBlocking), "making a stream");
    return made;
  }
  static void give(int device, Stream stream) {
    const std::lock_guard lock(mutex());
    free()[device].push_back(stream);
  }

 private:
  static std::mutex& mutex() {
    static auto* of_process = new std::mutex;
    return *of_process;
  }
  static std::map<int, std::vector<Stream>>& free() {
    static auto* of_process = new std::map<int, std::vector<Stream>>;
    return *of_process;
  }
};

}  // namespace

bool LaunchGraph::is_possible(const RunContext& run) {
  int state = 0;
  return Driver::get().capture_state(static_cast<Stream>(run.queue), &state) == 0 && state == 0;
}

LaunchGraph::LaunchGraph() : device_(current_device()) {
  stream_ = RecordingStreams::take(device_);
  current_ = stream_;
  mode_ = kRelaxed;
  driver_.capture_mode(&mode_);
  const int result = driver_.capture_begin(stream_, kRelaxed);
  if (result == 0) return;
  end_capture();
  driver_.check(result, "recording a graph");
}

LaunchGraph::~LaunchGraph() {
  end_capture();
  if (call_) driver_.graph_call_end(call_);
  if (graph_) driver_.graph_end(graph_);
}

void LaunchGraph::end_capture() {
  if (!stream_) return;
  const bool is_well = driver_.capture_end(stream_, &graph_) == 0;
  driver_.capture_mode(&mode_);
  lanes_.insert(lanes_.begin(), stream_);  // given last, and so the next one to be taken
  for (; !lanes_.empty(); lanes_.pop_back())
    if (is_well) RecordingStreams::give(device_, lanes_.back());
    else driver_.stream_end(lanes_.back());
  stream_ = current_ = nullptr;
}

void LaunchGraph::order(Stream first, Stream second) {
  Event event = nullptr;
  driver_.check(driver_.event_make(&event, kNoTiming), "making an event");
  const int recorded = driver_.event_record(event, first), waits = recorded == 0 ? driver_.stream_wait_for(second, event, 0) : recorded;
  driver_.event_end(event);
  driver_.check(waits, "ordering launches of a graph");
}

bool LaunchGraph::fork(int lanes) {
  if (!stream_) return false;
  forked_ = static_cast<size_t>(lanes) - 1;
  while (lanes_.size() < forked_) {
    lanes_.push_back(RecordingStreams::take(device_));
  }
  for (size_t i = 0; i < forked_; ++i) order(stream_, lanes_[i]);
  return true;
}

void LaunchGraph::enter(int lane, RunContext& run) {
  current_ = lane == 0 ? stream_ : lanes_[static_cast<size_t>(lane) - 1];
  run.queue = current_;
}

void LaunchGraph::join(RunContext& run) {
  for (size_t i = 0; i < forked_; ++i) order(lanes_[i], stream_);
  enter(0, run);
}

void LaunchGraph::finish() {
  end_capture();
  if (!graph_) unsupported("cuda: a graph's launches could not be recorded");
  fill_by_kernels(graph_, device_);
  driver_.check(driver_.graph_make(&call_, graph_, 0), "making a graph");
}

void LaunchGraph::keep(int step, Launch launch) {
  if (stream_) return add(step, std::move(launch));
  auto at = kept_.find(step);
  if (at == kept_.end()) unsupported("cuda: a step that launched nothing as its graph was recorded");
  Kept& kept = at->second;
  if (kept.launch == launch) return;
  PackedParameters packed(launch.parameters.data(), launch.parameters.size());
  NodeParameters p{
      .grid = {launch.blocks, 1, 1}, .block = {launch.width, launch.height, 1}, .extra = packed.extra, .kernel = launch.function};
  driver_.check(driver_.graph_set(call_, kept.node, &p), "changing a launch of a graph");
  kept.launch = std::move(launch);
}

void LaunchGraph::add(int step, Launch launch) {
  PackedParameters packed(launch.parameters.data(), launch.parameters.size());
  driver_.check(driver_.launch(launch.function, launch.blocks, 1, 1, launch.width, launch.height, 1, 0, current_, nullptr, packed.extra),
                "recording a launch");
  if (!kept_.try_emplace(step, Kept{last_node(), std::move(launch)}).second) unsupported("cuda: a step of several launches");
}

Node LaunchGraph::last_node() const {
  int state = 0;
  uint64_t id = 0;
  Graph graph = nullptr;
  const Node* last = nullptr;
  size_t count = 0;
  driver_.check(driver_.capture_info(current_, &state, &id, &graph, &last, &count), "looking at a graph");
  if (count != 1) unsupported("cuda: a launch is not the last one of its graph");
  return *last;
}

void LaunchGraph::replay(const RunContext& run) {
  driver_.check(driver_.graph_launch(call_, static_cast<Stream>(run.queue)), "launching a graph");
}

}  // namespace broach::cuda

// Launches that are kept and made again, on a target that writes down what it does.
#include "runtime/replay.h"

#include <doctest/doctest.h>

#include "support/error.h"

namespace broach {

namespace {

struct Log {
  std::vector<std::string> done;
  bool fails = false;
};

// Step 1 is no kernel.
class Kept : public Recording {
 public:
  explicit Kept(Log& log) : log_(log) {}
  void keep(int step, const std::string& what) {
    if (is_finished_) CHECK(step != 1);
    launches_[step] = what;
  }
  void finish() override {
    if (log_.fails) fail("it cannot be kept");
    is_finished_ = true;
  }
  void replay(const RunContext&) override {
    for (const auto& [step, what] : launches_) log_.done.push_back(what);
    log_.done.push_back("at once");
  }

 private:
  Log& log_;
  bool is_finished_ = false;
  std::map<int, std::string> launches_;
};

class Keeper : public Target {
 public:
  explicit Keeper(Log& log) : log_(log) {}
  std::string name() const override { return "keeper"; }
  CompiledKernels compile(std::span<const std::shared_ptr<const Kernel>>, const CompileSettings&) const override { return {}; }
  std::string save(const CompiledKernels&) const override { return {}; }
  CompiledKernels load(std::string_view) const override { return {}; }
  std::string fingerprint() const override { return {}; }
  std::shared_ptr<const CompiledContraction> contraction(const ContractionStep&, const CompileSettings&) const override { return nullptr; }
  std::shared_ptr<const CompiledRoutine> routine(const Operation&) const override { return nullptr; }
  const Capabilities& capabilities() const override { return all_capabilities(); }
  Memory& memory() const override { return HostMemory::get(); }
  void copy(void*, const void*, size_t, bool, const RunContext&) const override {}
  void wait(const RunContext&) const override {}
  void drain(const RunContext&) const noexcept override {}
  bool may_replay(const RunContext&) const override { return may_; }
  std::unique_ptr<Recording> record(RunContext& run) const override {
    auto kept = std::make_unique<Kept>(log_);
    run.recording = kept.get();
    return kept;
  }
  bool may_ = true;

 private:
  Log& log_;
};

// Steps 0 and 2 are kernels on buffers 0 and 2, step 1 is not, on buffer 1.
struct Program {
  Log log;
  Keeper target{log};
  KeptMemory memory;
  ReplayedSteps steps;
  std::vector<void*> data = {address(10), address(20), address(30)};
  int number = 0;

  explicit Program(bool has_numbers = false)
      : steps(0, std::vector<StepUse>{{true, has_numbers, {0}}, {false, false, {1}}, {true, false, {2}}}) {}
  static void* address(int n) { return reinterpret_cast<void*>(static_cast<uintptr_t>(n)); }

  // What was done, and whether at once.
  std::string call() {
    log.done.clear();
    RunContext context;
    context.memory = &HostMemory::get();
    auto step = [&](size_t i, RunContext& c) {
      const std::string what = cat(reinterpret_cast<uintptr_t>(data[i]) + static_cast<uintptr_t>(i == 0 ? number : 0));
      if (c.recording) static_cast<Kept*>(c.recording)->keep(static_cast<int>(i), what);
      else log.done.push_back(what);
    };
    if (!steps.run(target, context, data, memory, step))
      for (size_t i = 0; i < 3; ++i) step(i, context);
    std::string out;
    for (const std::string& s : log.done) out += (out.empty() ? "" : " ") + s;
    return out;
  }
};

}  // namespace

TEST_CASE("replay: what comes a second time is recorded") {
  Program p;
  CHECK(p.call() == "10 20 30");
  CHECK(p.call() == "10 20 30 at once");
  p.data[0] = Program::address(11);  // a kernel is told
  CHECK(p.call() == "11 20 30 at once");
  p.data[1] = Program::address(21);  // nothing else is
  CHECK(p.call() == "11 21 30");
  p.data[1] = Program::address(20);
  p.data[2] = Program::address(31);
  CHECK(p.call() == "11 20 31 at once");
  CHECK(p.steps.recordings() == 1);
}

TEST_CASE("replay: numbers may be others in each call") {
  Program p(true);
  p.call();
  for (p.number = 0; p.number < 3; ++p.number) CHECK(p.call() == cat(10 + p.number, " 20 30 at once"));
}

TEST_CASE("replay: only so much is kept") {
  Program p;
  for (int round = 0; round < 3; ++round)
    for (int n = 0; n < 40; ++n) {
      p.data[1] = Program::address(100 + n);
      for (int i = 0; i < 3; ++i) CHECK(p.call().starts_with(cat("10 ", 100 + n, " 30")));
    }
  CHECK(p.steps.recordings() == 16);
}

TEST_CASE("replay: nothing is kept where that is impossible") {
  Program now;
  now.target.may_ = false;
  for (int i = 0; i < 4; ++i) CHECK(now.call() == "10 20 30");
  now.target.may_ = true;
  now.call();
  CHECK(now.call() == "10 20 30 at once");
  Program never;
  never.log.fails = true;
  for (int i = 0; i < 4; ++i) CHECK(never.call() == "10 20 30");
  CHECK(never.steps.recordings() == 1);
}

TEST_CASE("replay: recordings of one queue share memory") {
  KeptMemory memory;
  int queues[2];
  auto& source = HostMemory::get();
  const auto first = memory.take(1000, &queues[0], source), other = memory.take(1000, &queues[1], source);
  CHECK(first.data != other.data);
  CHECK(memory.take(1000, &queues[0], source).data != first.data);  // it is taken
  memory.give(first);
  CHECK(memory.take(500, &queues[0], source).data == first.data);
}

}  // namespace broach

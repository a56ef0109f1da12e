// Launches that are kept and made again, on a target that writes down what it does.
#include "runtime/replay.h"

#include <doctest/doctest.h>

#include "runtime/executable.h"
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
  bool fork(int lanes) override {
    log_.done.push_back(cat("fork ", lanes));
    return true;
  }
  void enter(int lane, RunContext&) override { log_.done.push_back(cat("lane ", lane)); }
  void join(RunContext&) override { log_.done.push_back("join"); }
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

// What a program's call did, and whether at once.
template <class P>
std::string done_by(P& p, const ReplayedSteps::RunStep& step) {
  p.log.done.clear();
  RunContext context;
  context.memory = &HostMemory::get();
  if (!p.steps.run(p.target, context, p.frame, p.memory, step))
    for (size_t i = 0; i < 3; ++i) step(i, context);
  std::string out;
  for (const std::string& s : p.log.done) out += (out.empty() ? "" : " ") + s;
  return out;
}

// Steps 0 and 2 are kernels on buffers 0 and 2, step 1 is not, on buffer 1.
struct Program {
  Log log;
  Keeper target{log};
  KeptMemory memory;
  ReplayedSteps steps;
  Frame frame;
  std::pmr::vector<void*>& data = frame.data;
  int number = 0;

  explicit Program(bool has_numbers = false)
      : steps(0, std::vector<StepUse>{
                     {true, has_numbers, {0}, false, {}, {}}, {false, false, {1}, false, {}, {}}, {true, false, {2}, false, {}, {}}}) {
    data = {address(10), address(20), address(30)};
  }
  static void* address(int n) { return reinterpret_cast<void*>(static_cast<uintptr_t>(n)); }

  std::string call() {
    auto step = [&](size_t i, RunContext& c) {
      const std::string what = cat(reinterpret_cast<uintptr_t>(data[i]) + static_cast<uintptr_t>(i == 0 ? number : 0));
      if (c.recording) static_cast<Kept*>(c.recording)->keep(static_cast<int>(i), what);
      else log.done.push_back(what);
    };
    return done_by(*this, step);
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
  CHECK(p.steps.counts().made == 1);
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
  CHECK(p.steps.counts().made == 16);
}

TEST_CASE("replay: what a program has moved on from is forgotten, and recorded again where it comes back for good") {
  Program p;
  auto call_at = [&](int n) {
    p.data[1] = Program::address(n);
    return p.call().ends_with("at once");
  };
  CHECK(!call_at(20));
  CHECK(call_at(20));
  CHECK(!call_at(21));
  for (int i = 0; i < 10; ++i) CHECK(call_at(21));
  CHECK(call_at(20));  // not yet
  for (int i = 0; i < 60; ++i) CHECK(call_at(21));
  CHECK(p.steps.counts().made == 2);
  CHECK(call_at(20));  // its addresses are known
  CHECK(p.steps.counts().made == 3);
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
  CHECK(never.steps.counts().made == 1);
}

namespace {

// What calls of the host's library did for a recording.
struct CallLog {
  std::vector<std::string> done;
  bool fails = false;
};
CallLog calls_done;

class Calls : public RecordedCalls {
 public:
  void run(void*, const std::function<void()>& call) override {
    if (calls_done.fails) fail("it waits");
    call();
    calls_done.done.push_back("call");
  }
  void keep(Frame& frame, int buffer) override {
    calls_done.done.push_back(cat("keep ", buffer));
    kept_ = buffer, data_ = frame.data[static_cast<size_t>(buffer)];
  }
  void give(Frame& frame) const override {
    calls_done.done.push_back(cat("give ", kept_, " of ", reinterpret_cast<uintptr_t>(data_)));
    frame.data[static_cast<size_t>(kept_)] = Program::address(99);
  }

 private:
  int kept_ = -1;
  void* data_ = nullptr;
};

// Step 1 is a call from buffer 1 to buffer 3, which is read behind; step 2 is a kernel on what it makes.
struct ProgramWithCall {
  Log log;
  Keeper target{log};
  KeptMemory memory;
  ReplayedSteps steps{0, std::vector<StepUse>{
                             {true, false, {0}, false, {}, {}}, {false, false, {1, 3}, true, {3}, {3}}, {true, false, {3}, false, {}, {}}}};
  Frame frame;
  int made = 50;  // where the call's result lies the next time

  ProgramWithCall() {
    frame.data = {Program::address(10), Program::address(20), nullptr, nullptr};
    frame.record_calls = [](Device, void*, int64_t) -> std::unique_ptr<RecordedCalls> { return std::make_unique<Calls>(); };
    calls_done = {};
  }

  std::string call() {
    frame.data[3] = nullptr;
    auto step = [&](size_t i, RunContext& c) {
      if (i == 1) frame.data[3] = Program::address(made++);
      const std::string what = cat(reinterpret_cast<uintptr_t>(frame.data[i == 2 ? 3 : i]));
      if (c.recording) static_cast<Kept*>(c.recording)->keep(static_cast<int>(i), what);
      else log.done.push_back(what);
    };
    return done_by(*this, step);
  }
};

}  // namespace

TEST_CASE("replay: calls of the host's library are made as they are recorded, and never again") {
  ProgramWithCall p;
  CHECK(p.call() == "10 20 50");
  CHECK(p.frame.data[3] == Program::address(50));
  for (int n = 0; n < 3; ++n) {
    p.frame.data[0] = Program::address(11 + n);
    CHECK(p.call() == cat(11 + n, " 20 51 at once"));  // the kernel reads where the recording's result lies
    CHECK(p.frame.data[3] == Program::address(99));    // and whoever comes behind it, a copy
  }
  CHECK(calls_done.done == std::vector<std::string>{"call", "keep 3", "give 3 of 51", "give 3 of 51", "give 3 of 51"});
  p.frame.data[1] = Program::address(21);
  CHECK(p.call() == "13 21 52");
}

TEST_CASE("replay: a call that cannot be recorded is made with the others, one by one") {
  ProgramWithCall waits;
  calls_done.fails = true;
  for (int n = 0; n < 4; ++n) CHECK(waits.call() == cat("10 20 ", 50 + n));
  ProgramWithCall unknown;
  unknown.frame.record_calls = nullptr;
  for (int n = 0; n < 4; ++n) CHECK(unknown.call() == cat("10 20 ", 50 + n));
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

namespace {

// Five small steps, of which each but the first reads buffer 0. By default all are products, each in memory of its own.
std::string recorded(const std::function<void(std::vector<StepUse>&, std::vector<void*>&)>& change) {
  std::vector<StepUse> uses;
  std::vector<void*> data;
  for (int i = 0; i < 5; ++i) {
    StepUse u;
    u.is_small = u.is_product = true;
    u.memory = {{i, i, 16, true}};
    if (i > 0) u.memory.push_back({0, 0, 16, false});
    uses.push_back(u);
    data.push_back(Program::address(100 + 16 * i));
  }
  change(uses, data);
  struct {
    Log log;
    Keeper target{log};
    KeptMemory memory;
    Frame frame;
  } p;
  p.frame.data.assign(data.begin(), data.end());
  ReplayedSteps steps(0, uses);
  RunContext context;
  context.memory = &HostMemory::get();
  auto step = [&](size_t i, RunContext& c) {
    if (c.recording) p.log.done.push_back(cat(i));
  };
  for (int call = 0; call < 2; ++call) steps.run(p.target, context, p.frame, p.memory, step);
  std::string out;
  for (const std::string& s : p.log.done) out += (out.empty() ? "" : " ") + s;
  return out;
}

}  // namespace

TEST_CASE("replay: small products that do not need each other are recorded beside each other") {
  const std::string beside = "0 fork 4 lane 0 1 lane 1 2 lane 2 3 lane 3 4 join at once";
  CHECK(recorded([](auto&, auto&) {}) == beside);
  SUBCASE("not what is large") {
    CHECK(recorded([](auto& uses, auto&) { uses[2].is_small = false; }) == "0 1 2 fork 2 lane 0 3 lane 1 4 join at once");
  }
  SUBCASE("nor kernels alone") {
    auto kernels = [](auto& uses, auto&) {
      for (StepUse& u : uses) u.is_product = false;
    };
    CHECK(recorded(kernels) == "0 1 2 3 4 at once");
  }
  SUBCASE("nor what reads what another writes") {
    auto chain = [](auto& uses, auto&) { uses[3].memory.push_back({2, 2, 16, false}); };
    CHECK(recorded(chain) == "0 fork 2 lane 0 1 lane 1 2 join fork 2 lane 0 3 lane 1 4 join at once");
  }
  SUBCASE("parts of the arena count by their place") {
    auto arena = [](int64_t apart) {
      return [apart](auto& uses, auto& data) {
        for (int i = 1; i < 5; ++i)
          uses[static_cast<size_t>(i)].memory[0].own = -1,
          data[static_cast<size_t>(i)] = Program::address(static_cast<int>(200 + i * apart));
      };
    };
    CHECK(recorded(arena(16)) == beside);
    CHECK(recorded(arena(12)) == "0 1 2 3 4 at once");
  }
  SUBCASE("also beside what is no part of it, in whose memory they may lie") {
    auto spent = [](int place) {
      return [place](auto& uses, auto& data) {
        uses[1].memory.push_back({5, 5, 64, false});
        data.push_back(Program::address(1000));
        uses[2].memory[0].own = -1, data[2] = Program::address(place);
      };
    };
    CHECK(recorded(spent(1064)) == beside);
    CHECK(recorded(spent(1060)) == "0 1 fork 3 lane 0 2 lane 1 3 lane 2 4 join at once");
  }
  SUBCASE("of unknown size they meet") {
    auto unknown = [](auto& uses, auto&) {
      for (int i = 1; i < 5; ++i) uses[static_cast<size_t>(i)].memory[0].own = -1, uses[static_cast<size_t>(i)].memory[0].bytes = -1;
    };
    CHECK(recorded(unknown) == "0 1 2 3 4 at once");
  }
}

}  // namespace broach

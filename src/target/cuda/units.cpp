#include "target/cuda/units.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>

#include "support/error.h"
#include "support/log.h"
#include "target/target.h"

extern char** environ;

namespace broach::cuda {

namespace {

// The file that an address belongs to; empty if that is not known.
std::string file_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) && info.dli_fname ? info.dli_fname : "";
}

// A file in memory, which no program started meanwhile gets.
class MemoryFile {
 public:
  MemoryFile() : file_(memfd_create("broach", MFD_CLOEXEC)) {
    if (file_ < 0 || file_ > STDERR_FILENO) return;
    const int other = fcntl(file_, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);  // a process begins with those below as its own
    ::close(file_);
    file_ = other;
  }
  ~MemoryFile() {
    if (file_ >= 0) ::close(file_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  int get() const { return file_; }

  // Whether it could be done. Whoever reads it then begins at the front.
  bool write(std::string_view text) const { return write_all(file_, text) && lseek(file_, 0, SEEK_SET) == 0; }
  std::string read() const {
    struct stat s{};
    if (fstat(file_, &s) != 0) return "";
    std::string out(static_cast<size_t>(s.st_size), '\0');
    for (size_t at = 0; at < out.size();) {
      const ssize_t bytes = pread(file_, out.data() + at, out.size() - at, static_cast<off_t>(at));
      if (bytes <= 0) return "";
      at += static_cast<size_t>(bytes);
    }
    return out;
  }

 private:
  int file_;
};

class Worker {
 public:
  // Nothing runs if that fails.
  Worker(const std::string& program, const std::string& library, const std::string& source, int architecture) {
    if (source_.get() < 0 || result_.get() < 0 || !source_.write(source)) return;
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions) != 0) return;
    posix_spawn_file_actions_adddup2(&actions, source_.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, result_.get(), STDOUT_FILENO);
    const std::string number = cat(architecture), opened = "BROACH_NVRTC_LIBRARY=" + library;
    char* arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>(number.c_str()), nullptr};
    std::vector<char*> environment{const_cast<char*>(opened.c_str())};
    for (char** e = environ; *e; ++e)
      if (std::strncmp(*e, opened.c_str(), opened.find('=') + 1) != 0) environment.push_back(*e);
    environment.push_back(nullptr);
    if (posix_spawn(&process_, program.c_str(), &actions, nullptr, arguments, environment.data()) != 0) process_ = 0;
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Worker() {
    if (process_ > 0) wait();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Nothing if it did not come to an answer, or if somebody else has waited for the process.
  std::optional<UnitCode> finish() {
    if (process_ <= 0) return std::nullopt;
    const int status = wait();
    const int exit = WIFEXITED(status) ? WEXITSTATUS(status) : int{WorkerExit::failed};
    std::string text = exit == WorkerExit::failed ? "" : result_.read();
    if (text.empty()) return std::nullopt;
    if (exit == WorkerExit::refused) return UnitCode{"", std::move(text), true};
    return UnitCode{std::move(text), "", true};
  }

 private:
  int wait() {
    int status = 0;
    pid_t ended = 0;
    do ended = waitpid(process_, &status, 0);
    while (ended < 0 && errno == EINTR);
    process_ = 0;
    return ended > 0 ? status : W_EXITCODE(WorkerExit::failed, 0);
  }

  MemoryFile source_, result_;
  pid_t process_ = 0;
};

UnitCode compile_here(const std::string& source, int architecture) {
  try {
    return {Nvrtc::get().machine_code(source, architecture), "", false};
  } catch (const BuildFailure& e) {
    return {"", e.what(), false};
  }
}

}  // namespace

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t bytes = ::write(file, text.data(), text.size());
    if (bytes <= 0) return false;
    text.remove_prefix(static_cast<size_t>(bytes));
  }
  return true;
}

std::vector<std::vector<size_t>> divide_into_units(std::span<const std::string> texts, int threads) {
  constexpr size_t kWorthProcess = 24 << 10;  // characters, which take about 0.1 s; a process takes 0.05
  std::vector<size_t> order(texts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  size_t all = 0;
  for (const std::string& t : texts) all += t.size();
  const size_t count = std::clamp<size_t>(all / kWorthProcess, 1, static_cast<size_t>(std::max(threads, 1)));
  std::vector<std::vector<size_t>> units(std::min(count, std::max<size_t>(texts.size(), 1)));
  std::vector<size_t> sizes(units.size());
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return texts[i].size(); });
  for (size_t i : order) {
    const auto least = static_cast<size_t>(std::ranges::min_element(sizes) - sizes.begin());
    units[least].push_back(i);
    sizes[least] += texts[i].size();
  }
  return units;
}

std::string worker_program() {
  const std::string here = file_of(reinterpret_cast<const void*>(&compile_units));
  return here.substr(0, here.rfind('/') + 1) + "broach-nvrtc";
}

std::vector<UnitCode> compile_units(std::span<const std::string> sources, int architecture, const std::string& program) {
  const std::string library = file_of(reinterpret_cast<const void*>(Nvrtc::get().version));
  std::vector<std::unique_ptr<Worker>> workers;
  for (size_t i = 1; i < sources.size(); ++i) workers.push_back(std::make_unique<Worker>(program, library, sources[i], architecture));
  std::vector<UnitCode> out{compile_here(sources.front(), architecture)};
  for (size_t i = 1; i < sources.size(); ++i) {
    auto made = workers[i - 1]->finish();
    if (!made) log_info("cuda: a unit is compiled here: there is no answer from a process that broach-nvrtc runs in");
    out.push_back(made ? std::move(*made) : compile_here(sources[i], architecture));
  }
  return out;
}

}  // namespace broach::cuda

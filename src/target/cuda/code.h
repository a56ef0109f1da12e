// Machine code that the driver has.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "target/cuda/libraries.h"

namespace broach::cuda {

class Code {
 public:
  explicit Code(std::string image) : image_(std::move(image)) {
    const Driver& driver = Driver::get();
    driver.check(driver.library_load(&library_, image_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "loading machine code");
  }
  ~Code() { Driver::get().library_unload(library_); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  Function function(const std::string& name) const {
    const Driver& driver = Driver::get();
    Function found = nullptr;
    driver.check(driver.library_kernel(&found, library_, name.c_str()), "finding a kernel in its machine code");
    return found;
  }
  const std::string& image() const { return image_; }

 private:
  std::string image_;
  Library library_ = nullptr;
};

inline std::shared_ptr<const Code> compile_source(const std::string& source, int architecture) {
  return std::make_shared<const Code>(Nvrtc::get().machine_code(source, architecture));
}

// What is not generated: compiled for each architecture as it is first asked for. For the life of the process.
class WrittenCode {
 public:
  explicit WrittenCode(std::string source) : source_(std::move(source)) {}
  Function function(const std::string& name, int architecture) {
    std::lock_guard lock(mutex_);
    auto& code = known_[architecture];
    if (!code) code = compile_source(source_, architecture);
    return code->function(name);
  }

 private:
  std::string source_;
  std::mutex mutex_;
  std::map<int, std::shared_ptr<const Code>> known_;
};

}  // namespace broach::cuda

// Machine code that the driver has.
#pragma once

#include <memory>
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

}  // namespace broach::cuda

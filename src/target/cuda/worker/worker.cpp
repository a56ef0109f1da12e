// Compiles one unit for a process that has several (units.h). Takes the architecture as its argument, source on its input, and gives on
// its output machine code, or what the compiler says of the source.
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "target/cuda/units.h"
#include "target/target.h"

namespace {

std::string read_all(int file) {
  std::string out;
  char piece[1 << 16];
  ssize_t bytes = 0;
  while ((bytes = ::read(file, piece, sizeof piece)) > 0) out.append(piece, static_cast<size_t>(bytes));
  return out;
}

}  // namespace

int main(int arguments, char** argument) {
  using broach::cuda::WorkerExit, broach::cuda::write_all;
  if (arguments != 2) return WorkerExit::failed;
  try {
    const std::string code = broach::cuda::Nvrtc::get().machine_code(read_all(STDIN_FILENO), std::atoi(argument[1]));
    return write_all(STDOUT_FILENO, code) ? WorkerExit::compiled : WorkerExit::failed;
  } catch (const broach::BuildFailure& e) {
    return write_all(STDOUT_FILENO, e.what()) ? WorkerExit::refused : WorkerExit::failed;
  } catch (const broach::Unsupported&) {
    return WorkerExit::failed;
  }
}

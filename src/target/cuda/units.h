// Source that is compiled in several units at once. NVRTC works on one unit at a time in a process, whatever its threads do, so all but
// one go to processes of their own (the program broach-nvrtc, which lies beside this library).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "target/cuda/libraries.h"

namespace broach::cuda {

// Of the program: with what it ends.
enum WorkerExit : int { compiled = 0, refused = 1, failed = 2 };

// Whether it could be done.
bool write_all(int file, std::string_view text);

// By unit, positions of the texts: about as much for each of as many units as are worth a process, at most one for each thread.
std::vector<std::vector<size_t>> divide_into_units(std::span<const std::string> texts, int threads);

struct UnitCode {
  std::string image;    // machine code
  std::string refusal;  // what the compiler says; there is no code then
  bool by_worker = false;
};
std::string worker_program();
std::vector<UnitCode> compile_units(std::span<const std::string> sources, int architecture, const std::string& program = worker_program());

}  // namespace broach::cuda

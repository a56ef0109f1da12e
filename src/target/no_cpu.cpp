// In place of the CPU target in a build without LLVM.
#include "target/target.h"

namespace broach {

void set_library_path(const std::string&, std::string) {}

const Target* cpu_target() { return nullptr; }

}  // namespace broach

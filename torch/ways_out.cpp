#include "ways_out.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace broach {

namespace {

// What a failure says, and what helps then. The first that fits counts.
struct Row {
  std::string_view part, way;
};
constexpr Row kRows[] = {
    {"read on the host",
     "Express it in tensor operations (torch::where, masks), or move what reads it out of the compiled program and pass its result in."},
    {"sizes of the result of",
     "Keep the sizes fixed (a mask instead of a selection), or move the operation out of the compiled program and pass its result in."},
    {"one tensor is given twice", "Pass a clone() in one of the places."},
    {"lazy conjugate or negative", "Pass x.resolve_conj().resolve_neg()."},
    {"of a kind that Broach does not compile",
     "Pass a plain tensor (x.to_dense(), x.dequantize()), or leave this part out of the compiled program."},
    {"a tensor on ", "Pass x.cpu()."},
    {"shares its memory with another", "Pass the tensor that both are views of and take the views inside, or pass clones."},
    {"inputs that share memory", "Pass the tensor that both are views of and take the views inside, or pass clones."},
    {"shows elements twice", "Write to a clone() or contiguous() copy instead of the expanded tensor."},
    {"the program keeps", "Return the tensor and pass it in again with the next call."},
    {"in two runs: it depends on state", "Pass that state as an argument: a tensor, or a number."},
    {"sizes of its inputs change all the time", "Return the new values instead of writing them in place."},
    {"host code writes elements", "Make the tensor outside of the program, or by operations (torch::tensor, masked_fill)."},
    {"from a generator that", "Draw from the default generator, or pass what is drawn."},
    {"by set_data()", "Assign to the tensor's elements (copy_), or use the other tensor in its place."},
    {"the program trains", "Compile the model's forward pass alone."},
    {"gradients are", "For inference, call it under torch::NoGradGuard or torch::InferenceMode."},
    {"plain number by host code", "x.sym_size(i) and x.view_symint(...) leave sizes open where x.size(i) and x.view(...) fix them."},
    {"with gradients off, a view", "Return a detach() of it."},
    {"sets requires_grad", "Set it outside of the compiled program."},
    {"in place", "Use the operation that gives a new tensor."},
    {"no CPU target", "Build Broach with LLVM (BROACH_LLVM=ON)."},
};

}  // namespace

std::string way_out(const std::string& failure) {
  auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return failure.find(r.part) != std::string::npos; });
  return row == std::end(kRows) ? "" : ". " + std::string(row->way);
}

}  // namespace broach

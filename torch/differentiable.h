// How what a program gives depends, for autograd, on what it is given and holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace broach {

// What code of a front's, which computes gradients, has read on the host.
class ReadByCode {
 public:
  virtual ~ReadByCode() = default;
  // What is not as it was when the gradients were recorded, in words; empty if nothing.
  virtual std::string changed() const = 0;
  // Whether it asks how tensors lie in memory.
  virtual bool goes_by_layout() const = 0;
};

// What a result was, for autograd, beside what it shared memory with.
struct ShownAs {
  bool is_view = true;             // or no view, but with a history
  bool is_counted_apart = false;   // no view: its version counter is no other tensor's
  bool is_one_of_several = false;  // a view that must not be written where gradients are needed
};
ShownAs shown_as(const at::Tensor& result);

// A result's history that the program's own backward has used up.
struct UsedUpHistory {
  std::string node;            // of eager's; empty: the result has another history, or none
  std::vector<size_t> inputs;  // that it leads to, the lifted ones behind those given
};

// What eager keeps for gradients, by groups of nodes that the same backwards go through.
struct KeptByEager {
  struct Group {
    std::vector<bool> tangents, gradients;  // from whose results the engine comes, and to which it goes on
    std::vector<size_t> places;             // of tensors that others may write
    std::vector<bool> is_on_all_ways;       // by tangent: of whatever a backward from its result asks for
  };
  bool is_known = false;
  std::vector<Group> groups;
  std::vector<size_t> places;  // of all: inputs, the lifted ones behind those given, and behind them results
  size_t inputs = 0;           // how many places are
};

struct Differentiable {
  std::vector<size_t> results;                 // by tangent: the first position among the program's results, and behind them its bases
  std::vector<size_t> bases;                   // of results in one memory, where none of them is the others' base: one of its views
  std::vector<std::optional<size_t>> view_of;  // by tangent: the position of what its result is a view of, if that is among those
  std::vector<size_t> inputs;                  // by gradient: position among the inputs, the lifted ones behind those given
  std::vector<std::vector<bool>> reaches;      // by tangent and gradient
  std::vector<std::vector<size_t>> through;    // by tangent: the others whose results autograd meets on the way to the inputs
  std::vector<bool> has_history;               // by result of the program, and behind them by base
  std::vector<ShownAs> shown;                  // the same
  std::vector<UsedUpHistory> used_up;          // by result, if the program's own backward has used up all of them
  KeptByEager kept;
  std::vector<size_t> lets_need;                   // inputs that the program lets need gradients (requires_grad_), as it begins
  bool runs_backward = false;                      // the program does, as a training step
  std::shared_ptr<const ReadByCode> read_by_code;  // null where all gradients are torch's own formulas
  bool empty() const { return results.empty(); }
};

// Of what stands for an input: as a leaf, or with a history that leads nowhere.
void require_gradients(at::Tensor& stand_in, bool is_leaf);

}  // namespace broach

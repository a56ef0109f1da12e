// Host state that nobody watches: whether a program does the same in each run, as far as two runs show.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attempts.h"
#include "support/digest.h"
#include "trace/generalize.h"

namespace broach {

class Capture;

inline bool need_gradients(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}
// Whether it computes gradients of what it holds or is given; its results may hide that (a loss that is detached).
bool trains(const Capture& capture);

class HostState {
 public:
  // Of a run on plain tensors: good, unclear until the next one, or none that may be replayed. `kept`: what the program keeps, in words.
  Verdict judge(const Capture& capture, const std::string& kept, CallSizes sizes);
  // Of a run that may have been disturbed from outside: unclear, or unsupported where that goes on.
  Verdict disturbed(const std::string& reason) { return unclear(kMostDisturbed, reason); }
  // Whether the next run has to tell: one on stand-ins may have to be repeated, which a program with state would not bear.
  bool is_unclear() const { return unclear_in_a_row_ > 0; }

 private:
  static constexpr int kMostDisturbed = 8;
  static constexpr size_t kMostRuns = 16;
  struct Run {
    CallSizes sizes;
    std::string given;  // element types and needs of inputs, modes, and values that were read: what may lead a program another way
    // What it did: the recording's text without its numbers, and these in its order.
    Digest rest;
    std::vector<double> numbers;
  };
  Verdict unclear(int most, const std::string& reason);
  // Whether runs that were given other numbers did the same with these.
  bool follows_from_what_is_given(const Run& last) const;

  std::vector<Run> before_;  // of a program that writes to its inputs, one for each way to call it
  bool writes_alike_ = false;
  int unclear_in_a_row_ = 0;
};

}  // namespace broach

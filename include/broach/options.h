// How broach::compile compiles. Every setter returns the options, so that they chain: Options().pure().strict(true). A number
// below zero is an Error.
#pragma once

#include <string>

#include "broach/error.h"

namespace broach {

class Options {
 public:
  // A promise: what the program computes depends on its arguments, on the parameters, buffers and training flags of the module
  // or of those named by uses(), on tensors that it holds, and on nothing else that changes. What else its host code computed
  // during the first call (a captured number, a counter) is fixed from then on. Modules made of libtorch's own layers alone
  // need no promise, but for some losses and fractional pooling, of which compile() says so.
  Options& pure(bool on = true) { return set(pure_, on); }
  // Every operation rounds to its element type as eager's does, no multiplication is contracted with an addition, and nothing is
  // folded into weights; slower. What additions, multiplications, comparisons and moves of elements give is then bit-equal to
  // eager's. Sums (also those in means, norms, softmax, products and convolutions) may be added up in another order, and
  // exp, log, tanh, sigmoid, erf, gelu, sin and the like may differ in the last bits, and square roots, where MKL's are not exact.
  // Default: off.
  Options& strict(bool on = true) { return set(strict_, on); }
  // Products and convolutions are computed by what a rule chooses, never by what was measured to be faster: results have the
  // same bits from run to run. torch's own deterministic mode does the same. Default: off.
  Options& deterministic(bool on = true) { return set(deterministic_, on); }
  // Keeps weights rearranged for the kernels that read them, beside the originals, which stay where they are. A write to a
  // weight is noticed, single elements included, by whatever way torch gave the address since the last call; through a raw
  // address (data_ptr(), an accessor) that is older it is not. Default: on.
  Options& freeze(bool on = true) { return set(freeze_, on); }
  // Of a call that needs gradients: at most this part, 0 to 1, of the bytes that are saved for them by default; the backward
  // computes the rest anew, which takes longer. Default: 1.
  Options& memory_budget(double part) {
    if (!(part >= 0 && part <= 1)) throw Error("broach::Options::memory_budget(" + std::to_string(part) + "): must be from 0 to 1");
    return set(memory_budget_, part);
  }
  // Dropout, and torch::bernoulli with a number, draw numbers that follow from a seed, which the generator gives on each call, and the
  // place of an element: they are computed within the kernels that read them, and again for gradients, and are not eager's. A call
  // that runs eagerly, as the first one does, draws eager's; so nothing may rely on two calls of one seed being alike where one of
  // them may be eager's (a checkpoint around a compiled function does). strict() and verify() draw eager's. Default: off, eager's own.
  Options& counter_random(bool on = true) { return set(counter_random_, on); }
  // Threads that compile kernels; 0, the default, is one a core. Compiled programs run on libtorch's own threads
  // (at::set_num_threads).
  Options& threads(int n) { return set(threads_, counted("threads", n)); }
  // What cannot be compiled or replayed runs eagerly on every call, and explain() says why. Default: off, an Error.
  Options& fallback(bool on = true) { return set(fallback_, on); }

  // The first n calls of a compiled version run on copies of the arguments, then the program itself runs on the real ones, and
  // both are compared. A difference is told, and the program runs eagerly from then on. Default: 0.
  Options& verify(int n) { return set(verify_, counted("verify", n)); }

  bool is_pure() const { return pure_; }
  bool is_strict() const { return strict_; }
  bool is_deterministic() const { return deterministic_; }
  bool freezes() const { return freeze_; }
  double memory_budget() const { return memory_budget_; }
  bool draws_by_counter() const { return counter_random_ && !strict_ && verify_ == 0; }
  int threads() const { return threads_; }
  bool falls_back() const { return fallback_; }
  int verifies() const { return verify_; }

 private:
  template <class T>
  Options& set(T& member, T value) {
    member = value;
    return *this;
  }
  static int counted(const char* name, int n) {
    if (n < 0) throw Error(std::string("broach::Options::") + name + "(" + std::to_string(n) + "): must be 0 or more");
    return n;
  }

  bool pure_ = false, strict_ = false, freeze_ = true, fallback_ = false, deterministic_ = false, counter_random_ = false;
  int threads_ = 0, verify_ = 0;
  double memory_budget_ = 1.0;
};

}  // namespace broach

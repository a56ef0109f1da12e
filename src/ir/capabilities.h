// What a target computes by itself, as data. Shared code asks, and knows no library.
#pragma once

#include <map>
#include <set>
#include <utility>

#include "ir/graph.h"

namespace broach {

// Where a convolution's weight is scaled rather than its result, which is widened for that.
enum class ScalesWeights : uint8_t {
  never,
  once,     // where the weight stays the same: what is added stays behind the scale, in fp32
  in_calls  // and becomes a bias of the result's element type
};

// Of one kind of contraction, with results of one element type.
struct ContractionAbility {
  std::set<Op> activations;        // computed behind it, before the result is stored
  std::set<Op> exact_activations;  // of these, those that give what the primitive says for NaN as well
  std::set<Op> binaries;           // likewise, with an operand as large as the result, or repeated along all but its channels
  size_t most_epilogues = 0;
  bool residuals_only = false;  // only behind a bias, at most a sum and then an activation; nothing behind a transposed convolution
  bool bias = true;             // one element a column, or output channel
  bool bias_of_dilated = true;  // also of a convolution whose weight meets elements that lie apart
  bool through_casts = false;   // behind a cast to f32, if the result is cast back
  bool channels_last = false;   // its tensors should lie so
  bool lays_weights = false;    // of a convolution: and its weight, which the library would copy
  bool sums_one_row = false;    // of a product: one row is rather a sum of a kernel of the program's
  ScalesWeights scales_weights = ScalesWeights::never;
  bool grouped = true;        // of a convolution
  std::set<int64_t> ranks;    // of a convolution's operands; none: any
  bool thin_volumes = true;   // a convolution along three dimensions of one channel to rows of one point
  bool idle_windows = true;   // a convolution of which a window may lie in the padding as a whole
  bool far_padding = true;    // a transposed one whose result is padded by a stride or more, which a dilation allows
  int64_t channel_piece = 0;  // channels that a convolution computes at a time; fewer are unfolded to more
  int64_t unfolds_from = 0;   // in one of so many multiply-adds

  bool takes_bias(const Primitive& contraction) const;
};

struct Capabilities {
  // By kind and element type. What is missing stays a call of the host's library.
  std::map<std::pair<Op, DType>, ContractionAbility> contractions;
  std::set<std::pair<Op, DType>> routines;  // by the element type of the first operand
  // A reduction of so many elements into few results is worth cutting into parts.
  struct Reductions {
    int64_t smallest = int64_t{1} << 18;  // elements, of which one thread reduces fewer well enough
    int64_t pieces = 32;                  // of work, so that threads of different speed end at the same time
    int64_t columns = 2048;               // results that a kernel computes in one piece where its lanes are results
  } reductions;

  // Kernels that go through rows one after the other can add up their elements by columns meanwhile: one reading serves sums along both.
  struct RowAdder {
    DeviceKind device = DeviceKind::cpu;  // whose kernels
    int64_t fewest = 0, most = 0;         // columns; 0: none can
    int64_t smallest = 0;                 // elements worth it
    int64_t processors = 0;               // that work on parts of the rows
    int64_t bytes = 0;  // of the rows that one of them works on at a time, each of a power of two of elements; at least one row
  } row_adder;

  // Rows of large products' matrices begin at multiples of so many bytes, where that is free to choose; 0: anywhere.
  int64_t row_bytes = 0;

  // A kernel of at most so many points costs less than its launch, and is computed together with others.
  int64_t launch_points = 0;

  // From so many elements on, what a kernel that reduces rows would read along another axis than theirs is rather computed by a kernel of its
  // own, which turns it; 0: never.
  int64_t turned_points = 0;

  // A pointwise value of at least so many elements that a product of the gradients reads is rather written once more for it than kept from
  // the call on, if the product has at least so many multiplications for each of its bytes: two passes over it take no longer then.
  struct RepeatedOperands {
    int64_t elements = 0;  // 0: never
    double work = 0;
  } repeated_operands;

  const ContractionAbility* contraction(Op op, DType dtype) const;
  // Whether it computes this node, if that is a contraction or a routine.
  bool has(const Node& node) const;
};

// Of a target that has all contractions and routines, and behind a contraction what libraries usually have.
const Capabilities& all_capabilities();

}  // namespace broach

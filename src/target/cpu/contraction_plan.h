// How one contraction is computed for given sizes: which primitives of oneDNN, between which copies, and what else could compute it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "target/cpu/choice.h"
#include "target/cpu/contraction_desc.h"
#include "target/cpu/tile_product.h"
#include "target/target.h"

namespace broach::cpu {

// What the host's library is given, but for the addresses.
struct HostForm {
  onednn::Operand x, weight, result;
  std::optional<onednn::Operand> bias = {};
  std::vector<onednn::Operand> operands = {};
  Dims padding = {}, output_padding = {};
};

struct ContractionPlan {
  std::shared_ptr<const onednn::Primitive> primitive;  // null: the host's own is the only one
  std::shared_ptr<const onednn::Primitive> packed;     // the variant that wants its weight packed
  std::shared_ptr<const TileProduct> tiles;            // another that takes the same packed weight
  bool packs_by_rule = false;                          // that variant is the one to use unless another was measured to be faster
  std::shared_ptr<Choice> choice;                      // null: the rule holds
  std::optional<HostForm> host;                        // none: there is no host
  std::optional<HostForm> product;                     // of a weight's gradient: the second operand, transposed, times the first
  bool needs_packing = false;                          // `primitive` itself wants it packed
  bool packing_is_cheap = false;                       // beside a run, so that it may be done in each
  size_t layout = 0;                                   // of the packed weight
  std::optional<onednn::Operand> copied;               // the source as it lies, where the library takes it from a dense copy only
  std::optional<onednn::Operand> copied_bias;          // likewise
  // To and from the layouts that the primitive wants, where it has no fast path for those of the operands.
  std::shared_ptr<const onednn::Primitive> source_reorder, result_reorder;
  std::optional<size_t> summed;  // the epilogue operand to be copied into the result first
  // What the primitive leaves out, from its result in scratch memory.
  std::shared_ptr<const CompiledKernel> epilogue;
  bool biased = true;  // the primitive adds the bias
  bool empty = false;
};

// The primitive that takes its weight packed; null if none does.
const onednn::Primitive* packing_of(const ContractionPlan& plan);
size_t bytes_of(const onednn::Operand& o);
// What the contraction's elements may be rounded to; those in bf16 are what they are.
ContractionRules::Math math_of(const ContractionStep& step, const CompileSettings& settings);

// `is_static`: the sizes are those of every call.
ContractionPlan plan_contraction(const ContractionStep& step, const CompileSettings& settings, std::span<const int64_t> symbols,
                                 bool is_static);

}  // namespace broach::cpu

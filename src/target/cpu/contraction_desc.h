// What a contraction of a schedule is to oneDNN, for one vector of sizes.
#pragma once

#include <optional>
#include <set>

#include "target/cpu/onednn.h"
#include "target/target.h"

namespace broach::cpu {

using Dims = std::vector<int64_t>;

std::optional<onednn::DType> onednn_type(DType t);
inline int64_t element_bytes(onednn::DType t) { return t == onednn::DType::f32 ? 4 : 2; }  // of those that torch's types become
onednn::MathMode math_mode(ContractionRules::Math m);
onednn::Operand operand_of(const Operand& o, std::span<const int64_t> symbols);

// What the library computes behind a contraction. `exact`: only what gives NaN of NaN, as eager does.
std::set<Op> activations(bool exact);

// Rows and batches that lie one behind the other are one dimension: [.., m, k] x [.., k, n] -> [.., m, n], all of one rank.
onednn::MatmulDesc matmul_desc(const ContractionStep& step, std::span<const int64_t> symbols);
onednn::ConvDesc conv_desc(const ContractionStep& step, std::span<const int64_t> symbols);

// A convolution of single points, or the gradient of its weight, as the product that it is, where its points lie one behind the other. The
// gradient's is of what comes back, transposed, and the source.
std::optional<onednn::MatmulDesc> pointwise_product(const onednn::ConvDesc& desc);

// A tensor added to a batch of one looks to oneDNN 3.2 like a broadcast it has no kernel for. Such a sum starts from the
// destination instead: the operand, by its position among those of the epilogue, is to be copied there first.
std::optional<size_t> sum_in_place(onednn::ConvDesc& desc);

// Equal for what computes the same.
std::string key_of(const onednn::MatmulDesc& d);
std::string key_of(const onednn::ConvDesc& d);

// The process's primitive for this: layers of one shape share one. Null if the library has none.
std::shared_ptr<const onednn::Primitive> primitive_for(const onednn::MatmulDesc& desc);
std::shared_ptr<const onednn::Primitive> primitive_for(const onednn::ConvDesc& desc);

}  // namespace broach::cpu

#include "target/cpu/contraction_plan.h"

#include <algorithm>
#include <bit>

#include "support/error.h"
#include "target/cpu/epilogue.h"
#include "target/cpu/one_thread.h"

namespace broach::cpu {

using onednn::MatmulDesc;
using onednn::PostOp;
using onednn::Primitive;

namespace {

Dims dense(const Dims& dims) {
  Dims out(dims.size(), 1);
  for (size_t d = dims.size() - 1; d-- > 0;) out[d] = out[d + 1] * std::max<int64_t>(dims[d + 1], 1);
  return out;
}

Dims channels_last(const Dims& dims) {
  Dims out = dense(dims);
  for (size_t d = 2; d < dims.size(); ++d) out[d] *= dims[1];
  return out[1] = 1, out;
}

// Matrices and tensors without a dimension of stride 1 have no fast code.
bool has_unit_stride(const onednn::Operand& o) {
  for (size_t d = o.dims.size() - 2; d < o.dims.size(); ++d)
    if (o.strides[d] == 1) return true;
  return false;
}

// Batches that are one matrix over and over count once.
onednn::Operand without_repeats(const onednn::Operand& o) { return onednn::unexpanded(o, o.dims.size() - 2); }

}  // namespace

size_t bytes_of(const onednn::Operand& o) {
  auto bytes = static_cast<size_t>(element_bytes(o.dtype));
  for (int64_t d : o.dims) bytes *= static_cast<size_t>(d);
  return bytes;
}

const Primitive* packing_of(const ContractionPlan& b) { return b.packed ? b.packed.get() : b.needs_packing ? b.primitive.get() : nullptr; }

ContractionRules::Math math_of(const ContractionStep& step, const CompileSettings& settings) {
  if (step.result.type.dtype != DType::f32) return ContractionRules::Math::exact;
  return step.operation.op == Op::conv ? settings.contractions.conv : settings.contractions.dot;
}

namespace {

class Planner {
 public:
  Planner(const ContractionStep& step, const CompileSettings& settings, bool is_static)
      : step_(step), settings_(settings), is_static_(is_static) {}

  ContractionPlan plan(std::span<const int64_t> symbols) const {
    ContractionPlan b;
    if (step_.result.type.numel().eval(symbols) == 0) return b.empty = true, b;
    if (step_.operation.op == Op::conv_weight_gradient) {
      build_to_weight(b, conv_desc(step_, symbols), symbols);
    } else if (step_.operation.op == Op::conv) {
      auto desc = conv_desc(step_, symbols);
      desc.math = math_mode(math_of(step_, settings_));
      if (settings_.host_contraction) b.host = host_form(desc, symbols);
      build_conv(b, desc, symbols);
      // oneDNN 3.2 computes transposed ones by the kernels of others: better than the host's only where measured to be. Those of
      // single points are matrix products, which the host computes as such; oneDNN may take 40 times as long.
      const bool is_product =
          desc.transposed && b.host && std::all_of(desc.src.dims.begin() + 2, desc.src.dims.end(), [](int64_t d) { return d == 1; });
      const bool measures = !is_product && is_worth_measuring(desc.weight, flops(desc));
      if (b.primitive && measures) {
        if (const auto product = pointwise_product(desc)) find_tiles(b, *product);
        find_candidates(b, key_of(desc));
      } else if (desc.transposed && b.host) keep_host_only(b);
    } else {
      build_dot(b, symbols);
    }
    if (!b.primitive && !b.host)
      unsupported("cpu: oneDNN has no implementation for this ", name_of(step_.operation.op), " of ", step_.operands[0].type.str(), " and ",
                  step_.operands[1].type.str());
    if (const Primitive* p = packing_of(b)) b.layout = p->weight_layout().hash();
    return b;
  }

 private:
  static bool slow(const std::shared_ptr<const Primitive>& p) { return !p || p->is_reference(); }
  // For convolutions that it has no kernel for, the library also unfolds the source and multiplies, up to 20 times slower.
  static bool slow_conv(const std::shared_ptr<const Primitive>& p) { return slow(p) || p->is_unfolded(); }

  void build_conv(ContractionPlan& b, onednn::ConvDesc desc, std::span<const int64_t> symbols) const {
    if (!onednn::strided_layout(desc.src)) b.copied = desc.src, desc.src.strides = dense(desc.src.dims);
    copy_spread_bias(b, desc.bias);
    onednn::ConvDesc bare = desc;
    b.summed = sum_in_place(desc);
    b.primitive = primitive_for(desc);
    const bool binary =
        std::any_of(desc.post.begin(), desc.post.end(), [](const PostOp& p) { return p.binary() || p.kind == PostOp::sum; });
    if (slow_conv(b.primitive) && !lay_out(b, desc, binary)) compute_apart(b, bare, bare.dst, channels_last(bare.dst.dims), symbols);
    if (b.host && slow_conv(b.primitive)) b.primitive = nullptr;
    b.needs_packing = b.primitive != nullptr;
    constexpr int64_t kCheap = 256;  // points that each element of the weight is used at
    int64_t points = desc.dst.dims[0];
    for (size_t d = 2; d < desc.dst.dims.size(); ++d) points *= desc.transposed ? desc.src.dims[d] : desc.dst.dims[d];
    b.packing_is_cheap = points >= kCheap;
  }

  // Without AVX-512 the library's kernel for the gradient of single points that lie apart writes beyond its memory where channels do not
  // fill a vector.
  static bool breaks(const std::shared_ptr<const Primitive>& p, const onednn::ConvDesc& desc) {
    constexpr int64_t kLanes = 8;
    const std::string name = p ? p->implementation() : "";
    return name.starts_with("jit_1x1:") && name.find("avx512") == name.npos &&
           std::ranges::any_of(desc.strides, [](int64_t s) { return s > 1; }) &&
           (desc.src.dims[1] % kLanes != 0 || desc.dst.dims[1] % kLanes != 0);
  }

  void build_to_weight(ContractionPlan& b, onednn::ConvDesc desc, std::span<const int64_t> symbols) const {
    desc.math = math_mode(math_of(step_, settings_));
    if (settings_.host_contraction) b.host = host_form(desc, symbols);
    b.primitive = primitive_for(desc);
    if (breaks(b.primitive, desc)) b.primitive = nullptr;
    if (slow_conv(b.primitive)) {
      const auto from = onednn::strided_layout(desc.src);
      desc.src.any = true;
      if (auto better = primitive_for(desc); from && !slow_conv(better) && !breaks(better, desc)) {
        b.primitive = std::move(better);
        if (!(from == b.primitive->src_layout())) b.source_reorder = Primitive::reorder(from, b.primitive->src_layout());
      }
    }
    if (b.host && slow_conv(b.primitive)) b.primitive = nullptr;
    if (!b.primitive) return;
    const auto to = onednn::strided_layout(desc.weight);
    if (!(to == b.primitive->dst_layout())) b.result_reorder = Primitive::reorder(b.primitive->dst_layout(), to);
    if (!is_worth_measuring(desc.weight, flops(desc))) return;
    // The library's own products of such shapes take up to ten times as long as the host's (oneDNN 3.2, AVX2, rows of 4 KiB transposed).
    const bool is_uniform = desc.src.dtype == desc.weight.dtype && desc.dst.dtype == desc.weight.dtype;
    if (const auto product = pointwise_product(desc); product && is_uniform && settings_.host_contraction) b.product = host_form(*product);
    find_candidates(b, key_of(desc));
  }

  // Computes the bare product into memory with these strides, and what follows it in a kernel. False, and nothing changed, if
  // oneDNN has no fast code for that either. `result` is the description's own.
  template <class Desc>
  bool compute_apart(ContractionPlan& b, Desc& desc, onednn::Operand& result, const Dims& strides, std::span<const int64_t> symbols) const {
    const Desc given = desc;
    const Dims dims = evaluated<Dims>(step_.result.type.shape, symbols);
    desc.post.clear();
    result.strides = strides;
    for (DType t : {DType::f32, step_.result.type.dtype})
      for (bool biased : {true, false}) {
        if (!biased && !given.bias) continue;
        desc.bias = biased ? given.bias : std::nullopt;
        result.dtype = *onednn_type(t);
        auto bare = primitive_for(desc);
        if constexpr (std::is_same_v<Desc, onednn::ConvDesc>) {
          if (slow_conv(bare) && !lay_out(b, desc, false)) continue;
          if (slow_conv(bare)) bare = b.primitive;
        }
        if (slow(bare)) continue;
        b.primitive = std::move(bare), b.biased = biased, b.summed = std::nullopt;
        b.epilogue =
            compile_epilogue(step_, t, step_.operation.op == Op::conv ? channels_last(dims) : dense(dims), !biased, symbols, settings_);
        return true;
      }
    desc = given;
    return false;
  }

  // Lets oneDNN choose how a convolution's source, and result, lie. False if that does not help.
  static bool lay_out(ContractionPlan& b, onednn::ConvDesc desc, bool keep_result) {
    const onednn::Operand source = desc.src, result = desc.dst;
    desc.src.any = true;
    auto better = primitive_for(desc);
    if (slow_conv(better) && !keep_result) {
      desc.dst.any = true;
      better = primitive_for(desc);
    }
    if (slow_conv(better)) return false;
    b.primitive = better;
    auto from = onednn::strided_layout(source), to = onednn::strided_layout(result);
    if (!(from == better->src_layout())) b.source_reorder = Primitive::reorder(from, better->src_layout());
    if (!(to == better->dst_layout())) b.result_reorder = Primitive::reorder(better->dst_layout(), to);
    return true;
  }

  // Elements that overlap or are expanded, but for whole batches: the library takes only a copy.
  static void copy_if_needed(ContractionPlan& b, onednn::Operand& source) {
    const onednn::Operand once = without_repeats(source);
    if (onednn::strided_layout(once)) return;
    b.copied = once;
    source.dims = once.dims;
    source.strides = dense(once.dims);
  }

  // The library's kernels read a bias as if its elements lay side by side, whatever its description says.
  static void copy_spread_bias(ContractionPlan& b, std::optional<onednn::Operand>& bias) {
    if (!bias || bias->dims.back() == 1 || bias->strides.back() <= 1) return;
    b.copied_bias = bias;
    bias->strides = dense(bias->dims);
  }

  // On return `desc` is what is computed.
  void build_matmul(ContractionPlan& b, MatmulDesc& desc, std::span<const int64_t> symbols) const {
    copy_if_needed(b, desc.a);
    copy_spread_bias(b, desc.bias);
    if (b.primitive = primitive_for(desc); !slow(b.primitive)) return;
    const MatmulDesc given = desc;
    if (!has_unit_stride(desc.b)) desc.b.any = true;
    if (!has_unit_stride(desc.a)) {
      desc.a = without_repeats(desc.a);
      desc.a.strides = dense(desc.a.dims);
    }
    auto better = primitive_for(desc);
    if (!slow(better)) b.primitive = std::move(better);
    else if (!compute_apart(b, desc, desc.c, dense(desc.c.dims), symbols)) {
      desc = given;
      if (b.host) b.primitive = nullptr;
      return;
    }
    b.needs_packing = desc.b.any;
    onednn::Operand source = given.a;
    source.dims = desc.a.dims;
    if (desc.a.strides != given.a.strides)
      b.source_reorder = Primitive::reorder(onednn::strided_layout(source), onednn::strided_layout(desc.a));
  }

  static void keep_host_only(ContractionPlan& b) {
    ContractionPlan only;
    only.host = std::move(b.host);
    b = std::move(only);
  }

  void build_dot(ContractionPlan& b, std::span<const int64_t> symbols) const {
    auto desc = matmul_desc(step_, symbols);
    check(desc.a.dims.back() > 0, "cpu: a matrix product over nothing");
    desc.math = math_mode(math_of(step_, settings_));
    const MatmulDesc given = desc;
    if (settings_.host_contraction) b.host = host_form(desc);
    build_matmul(b, desc, symbols);
    if (!b.primitive) return;
    const bool as_given = !b.needs_packing && !b.source_reorder && !b.epilogue;
    int64_t rows = desc.a.dims[desc.a.dims.size() - 2];
    // Few rows read the weight once each: its layout decides. With many, packing brings a few per cent for twice the memory.
    b.packs_by_rule = rows <= kPackedRows;
    bool measures = is_worth_measuring(desc.b, flops(desc));
    if (as_given && step_.weight_inputs[1] >= 0 && (b.packs_by_rule || measures)) b.packed = packing(desc);
    if (measures) {
      find_tiles(b, given);
      find_candidates(b, key_of(given));
    }
  }

  HostForm host_form(const onednn::ConvDesc& desc, std::span<const int64_t> symbols) const {
    const Operation& n = step_.operation;
    HostForm form{operand_of(step_.operands[0], symbols), operand_of(step_.operands[1], symbols), operand_of(step_.result, symbols),
                  desc.bias};
    if (form.bias && form.bias->dims[0] != desc.dst.dims[1]) form.bias->dims[0] = desc.dst.dims[1], form.bias->strides[0] = 0;
    for (const auto& e : step_.epilogue)
      if (e.operand) form.operands.push_back(operand_of(*e.operand, symbols));
    form.padding = evaluated<Dims>(n.sizes(Attr::padding), symbols);
    if (n.op == Op::conv) form.output_padding = evaluated<Dims>(n.sizes(Attr::output_padding), symbols);
    return form;
  }

  static HostForm host_form(const MatmulDesc& desc) {
    HostForm form{desc.a, desc.b, desc.c, desc.bias};
    for (const PostOp& p : desc.post)
      if (p.binary()) form.operands.push_back(p.operand);
    return form;
  }

  // The product with its weight packed as oneDNN likes best, or, where that is padded, in narrower blocks if these need less.
  // Blocks of 48 columns are as fast as those of 64, and of 32 for a few rows; of 16 they take up to twice as long.
  // Where the number of rows changes from call to call, the layout must not.
  std::shared_ptr<const Primitive> packing(const MatmulDesc& desc) const {
    MatmulDesc d = desc;
    d.b.any = true;
    auto best = primitive_for(d);
    if (slow(best)) return nullptr;
    const size_t plain = onednn::strided_layout(desc.b).bytes();
    const bool few = is_static_ && desc.a.dims[desc.a.dims.size() - 2] <= kNarrowRows;
    d.b.any = false;
    for (int64_t columns : {48, 32}) {
      if (best->packed_weight_bytes() <= plain || (columns == 32 && !few)) break;
      d.b.layout = onednn::matmul_weight_layout(desc.b, columns);
      if (!d.b.layout || d.b.layout.bytes() >= best->packed_weight_bytes()) continue;
      if (auto narrow = primitive_for(d); !slow(narrow)) best = std::move(narrow);
    }
    return best;
  }

  // Small products cost less than knowing better would bring, and sizes that change are not met often enough.
  bool is_worth_measuring(const onednn::Operand& weight, double flops) const {
    constexpr double kFlops = 2e7, kWeightBytes = 1 << 20;
    return is_static_ && !settings_.contractions.deterministic &&
           (flops >= kFlops || static_cast<double>(bytes_of(weight)) >= kWeightBytes);
  }

  void find_tiles(ContractionPlan& b, const MatmulDesc& desc) const {
    if (const Primitive* p = packing_of(b); p && step_.weight_inputs[1] >= 0)
      b.tiles = TileProduct::create(desc, p->weight_layout(), step_, settings_);
  }

  // The host's own comes first, since it is what eager runs: whatever else there is has to be measured to be faster.
  void find_candidates(ContractionPlan& b, const std::string& shape) const {
    const bool packable = packing_of(b) && step_.weight_inputs[1] >= 0;
    Choice::Set all = 0;
    if (!b.needs_packing || !packable) all |= Choice::set_of(Candidate::plain);
    if (packable) all |= Choice::set_of(Candidate::packed);
    if (b.tiles) all |= Choice::set_of(Candidate::tiles);
    if (b.product) all |= Choice::set_of(Candidate::product);
    if (b.host) all |= Choice::set_of(Candidate::host);
    if (std::has_single_bit(all)) return;
    b.choice = Choice::of(cat(shape, packable ? "packable" : "", b.tiles ? "tiles" : "", b.product ? "product" : "", b.host ? "" : "alone"),
                          b.host                        ? Candidate::host
                          : b.packed && b.packs_by_rule ? Candidate::packed
                                                        : Candidate::plain,
                          all);
  }

  static constexpr int64_t kPackedRows = 96, kNarrowRows = 16;

  const ContractionStep& step_;
  const CompileSettings& settings_;
  bool is_static_;
};

}  // namespace

ContractionPlan plan_contraction(const ContractionStep& step, const CompileSettings& settings, std::span<const int64_t> symbols,
                                 bool is_static) {
  return Planner(step, settings, is_static).plan(symbols);
}

}  // namespace broach::cpu

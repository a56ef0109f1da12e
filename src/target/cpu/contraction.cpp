#include "target/cpu/contraction.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <mutex>

#include "support/error.h"
#include "support/recently_used.h"
#include "target/cpu/choice.h"
#include "target/cpu/contraction_desc.h"
#include "target/cpu/epilogue.h"
#include "target/cpu/strided_copy.h"
#include "target/packing.h"

namespace broach::cpu {

namespace {

using onednn::MatmulDesc;
using onednn::PostOp;
using onednn::Primitive;

void* aligned_scratch(std::vector<char>& memory, size_t bytes) {
  if (bytes == 0) return nullptr;
  if (memory.size() < bytes + 64) memory.resize(bytes + 64);
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});
}

// What the host's library is given, but for the addresses.
struct HostForm {
  onednn::Operand x, weight, result;
  std::optional<onednn::Operand> bias = {};
  std::vector<onednn::Operand> operands = {};
  Dims padding = {}, output_padding = {};
};

HostWindow host_window(const onednn::Operand& o, const void* data) {
  return {const_cast<void*>(data), o.dtype == onednn::DType::f32 ? DType::f32 : DType::bf16, o.dims, o.strides};
}

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
void drop_expanded_batches(onednn::Operand& o) {
  for (size_t d = 0; d + 2 < o.dims.size(); ++d)
    if (o.strides[d] == 0) o.dims[d] = 1;
}

size_t bytes_of(const onednn::Operand& o) {
  size_t bytes = o.dtype == onednn::DType::f32 ? 4 : 2;
  for (int64_t d : o.dims) bytes *= static_cast<size_t>(d);
  return bytes;
}

class OneDnnContraction : public CompiledContraction, private WeightPacking {
 public:
  OneDnnContraction(const ContractionStep& step, const CompileSettings& settings) : step_(step), settings_(settings) {
    settings_.progress = nullptr;  // what is compiled later is nobody's progress
    std::vector<SymbolId> symbols;
    auto collect = [&](const Operand& o) {
      for (const auto& e : o.type.shape) e.collect_symbols(symbols);
      for (const auto& e : o.place.strides) e.collect_symbols(symbols);
    };
    for (const auto& o : step.operands) collect(o);
    collect(step.result);
    for (const auto& e : step.epilogue)
      if (e.operand) collect(*e.operand);
    is_static_ = symbols.empty();
    if (is_static_) fixed_ = std::make_shared<const Built>(build({}));
    else ++changing_;
  }
  ~OneDnnContraction() override {
    if (!is_static_) --changing_;
  }
  OneDnnContraction(const OneDnnContraction&) = delete;
  OneDnnContraction& operator=(const OneDnnContraction&) = delete;

  void run(const ContractionArgs& args, const RunContext& context) const override {
    const auto sized = is_static_ ? nullptr : for_sizes(context.symbols);
    const Built& built = is_static_ ? *fixed_ : *sized;
    if (built.empty) return;
    const void* prepared = args.packed && args.packed->layout == built.layout ? args.packed->data.get() : nullptr;
    const Choice::Set available = available_to(built, args, prepared);
    if (!built.choice) return run(built, args, context, prepared, by_rule(built, available));
    Candidate c = built.choice->next(available, context.pace);
    auto start = std::chrono::steady_clock::now();
    run(built, args, context, prepared, c);
    built.choice->record(c, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), context.pace);
  }

  std::string pick(std::span<const int64_t> symbols) const override {
    const auto built = at(symbols);
    const Built& b = *built;
    if (b.empty) return "nothing to do";
    auto decided = b.choice ? b.choice->decided() : std::nullopt;
    std::string text = !b.primitive || decided == Candidate::host ? "aten" : library_text(b);
    if (b.primitive && b.primitive->text().find("math mode") != std::string::npos)
      text += math() == ContractionRules::Math::bf16 ? ", bf16 allowed" : ", tf32 allowed";
    if (b.choice) text += cat(decided ? " [" : " [being measured: ", b.choice->text(), "]");
    return b.primitive && b.primitive->is_reference() ? text + " (slow: " + b.primitive->text() + ")" : text;
  }

  const WeightPacking* packing() const override { return this; }

 private:
  size_t bytes(std::span<const int64_t> symbols, bool for_trial) const override {
    const auto b = at(symbols);
    const Primitive* p = packing_of(*b);
    return p && (for_trial || wants_packed(*b)) ? p->packed_weight_bytes() : 0;
  }

  size_t layout(std::span<const int64_t> symbols) const override { return at(symbols)->layout; }

  size_t trial(std::span<const int64_t> symbols) const override {
    const auto b = at(symbols);
    return b->choice && !b->choice->decided() && b->choice->tries(Candidate::packed) ? reinterpret_cast<size_t>(b->choice.get()) : 0;
  }

  bool is_settled(std::span<const int64_t> symbols) const override {
    const auto b = at(symbols);
    return !b->choice || b->choice->decided();
  }

  void pack(std::span<const int64_t> symbols, const void* weight, void* packed) const override {
    packing_of(*at(symbols))->pack_weight(weight, packed);
  }

  struct Built {
    std::shared_ptr<const Primitive> primitive;  // null: the host's own is the only one
    std::shared_ptr<const Primitive> packed;     // the variant that wants its weight packed
    bool packs_by_rule = false;                  // that variant is the one to use unless another was measured to be faster
    std::shared_ptr<Choice> choice;              // null: the rule holds
    std::optional<HostForm> host;                // none: there is no host
    bool needs_packing = false;                  // `primitive` itself wants it packed
    bool packing_is_cheap = false;               // beside a run, so that it may be done in each
    size_t layout = 0;                           // of the packed weight
    std::optional<onednn::Operand> copied;       // the source as it lies, where the library takes it from a dense copy only
    // To and from the layouts that the primitive wants, where it has no fast path for those of the operands.
    std::shared_ptr<const Primitive> source_reorder, result_reorder;
    std::optional<size_t> summed;  // the epilogue operand to be copied into the result first
    // What the primitive leaves out, from its result in scratch memory.
    std::shared_ptr<const CompiledKernel> epilogue;
    bool biased = true;  // the primitive adds the bias
    bool empty = false;
  };

  static const Primitive* packing_of(const Built& b) { return b.packed ? b.packed.get() : b.needs_packing ? b.primitive.get() : nullptr; }

  static bool wants_packed(const Built& b) {
    if (b.choice) return b.choice->decided() == Candidate::packed;
    return b.needs_packing || (b.packed && b.packs_by_rule);
  }

  static std::string library_text(const Built& b) {
    std::string text = "onednn " + b.primitive->implementation() + (wants_packed(b) || b.needs_packing ? " packed" : "");
    if (b.copied || b.source_reorder) text += ", operand copied";
    if (b.result_reorder) text += ", result copied";
    if (b.epilogue) text += ", epilogue apart";
    return text;
  }

  static Choice::Set available_to(const Built& b, const ContractionArgs& args, const void* prepared) {
    Choice::Set available = 0;
    if (prepared) available |= Choice::set_of(Candidate::packed);
    if (!args.operands[1]) return available;
    if (b.primitive) available |= Choice::set_of(Candidate::plain);
    return b.host ? available | Choice::set_of(Candidate::host) : available;
  }

  // Without measuring. Under the rule that results have the same bits from run to run, packing changes none of them.
  Candidate by_rule(const Built& b, Choice::Set available) const {
    if (available & Choice::set_of(Candidate::packed)) return Candidate::packed;
    if (!(available & Choice::set_of(Candidate::plain))) return Candidate::host;
    const bool pinned = settings_.contractions.deterministic || !(available & Choice::set_of(Candidate::host));
    return b.needs_packing && !b.packing_is_cheap && !pinned ? Candidate::host : Candidate::plain;
  }

  void run(const Built& built, const ContractionArgs& args, const RunContext& context, const void* prepared, Candidate candidate) const {
    if (candidate == Candidate::host) run_host(*built.host, args);
    else run_library(built, args, context, candidate == Candidate::packed ? prepared : nullptr);
  }

  void run_host(const HostForm& form, const ContractionArgs& args) const {
    HostWindow operands[8];
    for (size_t i = 0; i < form.operands.size(); ++i) operands[i] = host_window(form.operands[i], args.epilogue[i]);
    settings_.host_contraction({step_.operation, host_window(form.x, args.operands[0]), host_window(form.weight, args.operands[1]),
                                form.bias ? host_window(*form.bias, args.bias) : HostWindow{}, host_window(form.result, args.result),
                                form.padding, form.output_padding, step_.epilogue, std::span(operands, form.operands.size())});
  }

  static void run_library(const Built& built, const ContractionArgs& args, const RunContext& context, const void* prepared) {
    thread_local std::vector<char> memory, weight_memory;
    const void* weight = prepared;
    if (!weight) {
      weight = args.operands[1];
      if (built.needs_packing) {
        void* packed = aligned_scratch(weight_memory, built.primitive->packed_weight_bytes());
        built.primitive->pack_weight(weight, packed);
        weight = packed;
      }
    }
    const Primitive& p = prepared && built.packed ? *built.packed : *built.primitive;
    // One piece of scratch memory: the operand and the result in oneDNN's layouts, if those differ, then the primitive's own.
    size_t copied_bytes = built.copied ? round_up(bytes_of(*built.copied)) : 0;
    size_t source_bytes = built.source_reorder ? round_up(p.src_bytes()) : 0,
           result_bytes = built.result_reorder || built.epilogue ? round_up(p.dst_bytes()) : 0;
    // Where the epilogue is a kernel, its operand lies between: the result, or the result back in a plain layout.
    size_t product_bytes = built.epilogue && built.result_reorder ? round_up(built.result_reorder->dst_bytes()) : 0;
    size_t own = p.scratchpad_bytes();
    for (const auto& r : {built.source_reorder, built.result_reorder})
      if (r) own = std::max(own, r->scratchpad_bytes());
    auto* scratch = static_cast<std::byte*>(aligned_scratch(memory, copied_bytes + source_bytes + result_bytes + product_bytes + own));
    const void* source = args.operands[0];
    if (built.copied) {
      copy_to_dense(built.copied->dims, built.copied->strides, built.copied->dtype == onednn::DType::f32 ? 4 : 2, source, scratch,
                    *context.threads);
      source = scratch;
      scratch += copied_bytes;
    }
    auto* own_scratch = scratch + source_bytes + result_bytes + product_bytes;
    if (built.source_reorder) {
      built.source_reorder->run(source, nullptr, nullptr, scratch, {}, own_scratch);
      source = scratch;
    }
    if (built.epilogue) {
      void* product = scratch + source_bytes;
      p.run(source, weight, built.biased ? args.bias : nullptr, product, {}, own_scratch);
      if (built.result_reorder) {
        built.result_reorder->run(product, nullptr, nullptr, scratch + source_bytes + result_bytes, {}, own_scratch);
        product = scratch + source_bytes + result_bytes;
      }
      run_epilogue(built, args, context, product);
      return;
    }
    void* result = built.result_reorder ? scratch + source_bytes : args.result;
    const void* operands[8];
    size_t count = 0;
    for (size_t i = 0; i < args.epilogue.size(); ++i)
      if (i != built.summed) operands[count++] = args.epilogue[i];
    if (built.summed && result != args.epilogue[*built.summed]) std::memcpy(result, args.epilogue[*built.summed], p.dst_bytes());
    p.run(source, weight, args.bias, result, {operands, count}, own_scratch);
    if (built.result_reorder) built.result_reorder->run(result, nullptr, nullptr, args.result, {}, own_scratch);
  }

  static void run_epilogue(const Built& built, const ContractionArgs& args, const RunContext& context, void* product) {
    void* buffers[11];
    size_t count = 0;
    buffers[count++] = product;
    if (!built.biased) buffers[count++] = args.bias;
    for (void* operand : args.epilogue) buffers[count++] = operand;
    buffers[count++] = args.result;
    built.epilogue->launch(buffers, nullptr, context);
  }

  // What this contraction's elements may be rounded to; those in bf16 are what they are.
  ContractionRules::Math math() const {
    if (step_.result.type.dtype != DType::f32) return ContractionRules::Math::exact;
    return step_.operation.op == Op::conv ? settings_.contractions.conv : settings_.contractions.dot;
  }

  static size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }
  static bool slow(const std::shared_ptr<const Primitive>& p) { return !p || p->is_reference(); }
  // For convolutions that it has no kernel for, the library also unfolds the source and multiplies, up to 20 times slower.
  static bool slow_conv(const std::shared_ptr<const Primitive>& p) { return slow(p) || p->is_unfolded(); }

  void build_conv(Built& b, onednn::ConvDesc desc, std::span<const int64_t> symbols) const {
    if (!onednn::strided_layout(desc.src)) b.copied = desc.src, desc.src.strides = dense(desc.src.dims);
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

  // Computes the bare product into memory with these strides, and what follows it in a kernel. False, and nothing changed, if
  // oneDNN has no fast code for that either. `result` is the description's own.
  template <class Desc>
  bool compute_apart(Built& b, Desc& desc, onednn::Operand& result, const Dims& strides, std::span<const int64_t> symbols) const {
    const Desc given = desc;
    const Dims dims = evaluate(step_.result.type.shape, symbols);
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
  static bool lay_out(Built& b, onednn::ConvDesc desc, bool keep_result) {
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
  static void copy_if_needed(Built& b, onednn::Operand& source) {
    onednn::Operand once = source;
    drop_expanded_batches(once);
    if (onednn::strided_layout(once)) return;
    b.copied = once;
    source.dims = once.dims;
    source.strides = dense(once.dims);
  }

  // On return `desc` is what is computed.
  void build_matmul(Built& b, MatmulDesc& desc, std::span<const int64_t> symbols) const {
    copy_if_needed(b, desc.a);
    if (b.primitive = primitive_for(desc); !slow(b.primitive)) return;
    const MatmulDesc given = desc;
    if (!has_unit_stride(desc.b)) desc.b.any = true;
    if (!has_unit_stride(desc.a)) {
      drop_expanded_batches(desc.a);
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

  Built build(std::span<const int64_t> symbols) const {
    Built b;
    if (step_.result.type.numel().eval(symbols) == 0) return b.empty = true, b;
    if (step_.operation.op == Op::conv) {
      auto desc = conv_desc(step_, symbols);
      desc.math = math_mode(math());
      if (settings_.host_contraction) b.host = host_form(desc, symbols);
      build_conv(b, desc, symbols);
      // oneDNN 3.2 computes transposed ones by the kernels of others: better than the host's only where measured to be. Those of
      // single points are matrix products, which the host computes as such; oneDNN may take 40 times as long.
      const bool is_product =
          desc.transposed && b.host && std::all_of(desc.src.dims.begin() + 2, desc.src.dims.end(), [](int64_t d) { return d == 1; });
      const bool measures = !is_product && is_worth_measuring(desc.weight, flops(desc));
      if (b.primitive && measures) find_candidates(b, key_of(desc));
      else if (desc.transposed && b.host) keep_host_only(b);
    } else {
      build_dot(b, symbols);
    }
    if (!b.primitive && !b.host)
      unsupported("cpu: oneDNN has no implementation for this ", name_of(step_.operation.op), " of ", step_.operands[0].type.str(), " and ",
                  step_.operands[1].type.str());
    if (const Primitive* p = packing_of(b)) b.layout = p->weight_layout().hash();
    return b;
  }

  static void keep_host_only(Built& b) {
    Built only;
    only.host = std::move(b.host);
    b = std::move(only);
  }

  void build_dot(Built& b, std::span<const int64_t> symbols) const {
    auto desc = matmul_desc(step_, symbols);
    check(desc.a.dims.back() > 0, "cpu: a matrix product over nothing");
    desc.math = math_mode(math());
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
    if (measures) find_candidates(b, key_of(given));
  }

  HostForm host_form(const onednn::ConvDesc& desc, std::span<const int64_t> symbols) const {
    const Operation& n = step_.operation;
    HostForm form{operand_of(step_.operands[0], symbols), operand_of(step_.operands[1], symbols), operand_of(step_.result, symbols),
                  desc.bias};
    if (form.bias && form.bias->dims[0] != desc.dst.dims[1]) form.bias->dims[0] = desc.dst.dims[1], form.bias->strides[0] = 0;
    for (const auto& e : step_.epilogue)
      if (e.operand) form.operands.push_back(operand_of(*e.operand, symbols));
    form.padding = evaluate(n.sizes(Attr::padding), symbols);
    form.output_padding = evaluate(n.sizes(Attr::output_padding), symbols);
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

  static double flops(const MatmulDesc& desc) {
    double flops = 2.0 * static_cast<double>(desc.b.dims.back());
    for (int64_t d : desc.a.dims) flops *= static_cast<double>(d);
    return flops;
  }

  static double flops(const onednn::ConvDesc& desc) {
    const Dims &w = desc.weight.dims, &points = desc.transposed ? desc.src.dims : desc.dst.dims;
    double flops = 2.0 * static_cast<double>(desc.dst.dims[0]);
    for (int64_t d : w) flops *= static_cast<double>(d);
    for (size_t d = 2; d < points.size(); ++d) flops *= static_cast<double>(points[d]);
    return flops;
  }

  // Small products cost less than knowing better would bring, and sizes that change are not met often enough.
  bool is_worth_measuring(const onednn::Operand& weight, double flops) const {
    constexpr double kFlops = 2e7, kWeightBytes = 1 << 20;
    return is_static_ && !settings_.contractions.deterministic &&
           (flops >= kFlops || static_cast<double>(bytes_of(weight)) >= kWeightBytes);
  }

  // The host's own comes first, since it is what eager runs: whatever else there is has to be measured to be faster.
  void find_candidates(Built& b, const std::string& shape) const {
    const bool packable = packing_of(b) && step_.weight_inputs[1] >= 0;
    Choice::Set all = 0;
    if (!b.needs_packing || !packable) all |= Choice::set_of(Candidate::plain);
    if (packable) all |= Choice::set_of(Candidate::packed);
    if (b.host) all |= Choice::set_of(Candidate::host);
    if (std::has_single_bit(all)) return;
    b.choice = Choice::of(cat(shape, packable ? "packable" : "", b.host ? "" : "alone"),
                          b.host                        ? Candidate::host
                          : b.packed && b.packs_by_rule ? Candidate::packed
                                                        : Candidate::plain,
                          all);
  }

  std::shared_ptr<const Built> at(std::span<const int64_t> symbols) const { return is_static_ ? fixed_ : for_sizes(symbols); }

  std::shared_ptr<const Built> for_sizes(std::span<const int64_t> symbols) const {
    std::vector<int64_t> key(symbols.begin(), symbols.end());
    std::lock_guard lock(mutex_);
    if (!built_) built_.emplace(std::clamp(kMostBuilt / static_cast<size_t>(changing_.load()), kFewestSizes, kMostSizes));
    if (auto known = built_->find(key)) return *known;
    return built_->insert(std::move(key), std::make_shared<const Built>(build(symbols)));
  }

  static constexpr int64_t kPackedRows = 96, kNarrowRows = 16;
  // Sizes of which primitives are kept, so that all contractions that the process has together keep about so many: some 64 KiB each.
  static constexpr size_t kMostBuilt = 16384, kMostSizes = 1024, kFewestSizes = 64;
  static inline std::atomic<int64_t> changing_ = 0;  // contractions of changing sizes

  ContractionStep step_;
  CompileSettings settings_;
  bool is_static_ = false;
  std::shared_ptr<const Built> fixed_;
  mutable std::mutex mutex_;
  mutable std::optional<RecentlyUsed<std::vector<int64_t>, std::shared_ptr<const Built>>> built_;
};

}  // namespace

bool has_contractions(DType dtype) {
  if (!onednn::available() || !onednn_type(dtype)) return false;
  // A processor without instructions for bf16 gets no primitive for it.
  static const bool has_bf16 = [] {
    onednn::Operand square{.dims = {16, 16}, .dtype = onednn::DType::bf16};
    return Primitive::create(onednn::MatmulDesc{square, square, square}) != nullptr;
  }();
  return dtype != DType::bf16 || has_bf16;
}

std::shared_ptr<const CompiledContraction> make_contraction(const ContractionStep& step, const CompileSettings& settings) {
  if (!has_contractions(step.result.type.dtype) || !step.side_results.empty()) return nullptr;
  return std::make_shared<OneDnnContraction>(step, settings);
}

}  // namespace broach::cpu

#include "target/cpu/contraction.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>

#include "support/error.h"
#include "support/recently_used.h"
#include "target/cpu/contraction_plan.h"
#include "target/cpu/scratch.h"
#include "target/cpu/strided_copy.h"
#include "target/packing.h"

namespace broach::cpu {

namespace {

using onednn::Primitive;

HostWindow host_window(const onednn::Operand& o, const void* data) {
  return {const_cast<void*>(data), o.dtype == onednn::DType::f32 ? DType::f32 : DType::bf16, o.dims, o.strides};
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
    if (step.bias) collect(*step.bias);
    for (const auto& e : step.epilogue)
      if (e.operand) collect(*e.operand);
    is_static_ = symbols.empty();
    if (is_static_) fixed_ = std::make_shared<const ContractionPlan>(plan_contraction(step_, settings_, {}, true));
    else ++changing_;
  }
  ~OneDnnContraction() override {
    if (!is_static_) --changing_;
  }
  OneDnnContraction(const OneDnnContraction&) = delete;
  OneDnnContraction& operator=(const OneDnnContraction&) = delete;

  void run(const ContractionArgs& args, const RunContext& context) const override {
    const auto sized = is_static_ ? nullptr : for_sizes(context.symbols);
    const ContractionPlan& built = is_static_ ? *fixed_ : *sized;
    if (built.empty) return;
    const void* prepared = args.packed && args.packed->layout == built.layout ? args.packed->data.get() : nullptr;
    const Choice::Set available = available_to(built, args, prepared);
    if (!built.choice) return run(built, args, context, prepared, by_rule(built, available));
    Candidate c = built.choice->next(available, context.pace);
    auto start = std::chrono::steady_clock::now();
    run(built, args, context, prepared, c);
    built.choice->record(c, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), context.pace, available);
  }

  std::string pick(std::span<const int64_t> symbols) const override {
    const auto built = at(symbols);
    const ContractionPlan& b = *built;
    if (b.empty) return "nothing to do";
    auto decided = b.choice ? b.choice->decided() : std::nullopt;
    std::string text = !b.primitive || decided == Candidate::host ? "aten"
                       : decided == Candidate::tiles              ? "amx tiles packed"
                       : decided == Candidate::product            ? "aten as a product"
                                                                  : library_text(b);
    if (b.primitive && b.primitive->text().find("math mode") != std::string::npos)
      text += math_of(step_, settings_) == ContractionRules::Math::bf16 ? ", bf16 allowed" : ", tf32 allowed";
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

  std::optional<PackingGain> gain(std::span<const int64_t> symbols) const override {
    const auto b = at(symbols);
    return b->choice ? b->choice->gain() : std::nullopt;
  }

  bool is_settled(std::span<const int64_t> symbols) const override {
    const auto b = at(symbols);
    return !b->choice || b->choice->decided();
  }

  void pack(std::span<const int64_t> symbols, const void* weight, void* packed) const override {
    packing_of(*at(symbols))->pack_weight(weight, packed);
  }

  static bool wants_packed(const ContractionPlan& b) {
    if (b.choice) return b.choice->decided() && is_packed(*b.choice->decided());
    return b.needs_packing || (b.packed && b.packs_by_rule);
  }

  static std::string library_text(const ContractionPlan& b) {
    std::string text = "onednn " + b.primitive->implementation() + (wants_packed(b) || b.needs_packing ? " packed" : "");
    if (b.copied || b.source_reorder) text += ", operand copied";
    if (b.result_reorder) text += ", result copied";
    if (b.epilogue) text += ", epilogue apart";
    return text;
  }

  static Choice::Set available_to(const ContractionPlan& b, const ContractionArgs& args, const void* prepared) {
    Choice::Set available = 0;
    if (prepared) available |= Choice::set_of(Candidate::packed);
    if (prepared && b.tiles) available |= Choice::set_of(Candidate::tiles);
    if (!args.operands[1]) return available;
    // A weight that changes from call to call is packed within each.
    if (b.primitive && b.needs_packing && b.packing_is_cheap) available |= Choice::set_of(Candidate::packed);
    if (b.primitive) available |= Choice::set_of(Candidate::plain);
    if (b.product) available |= Choice::set_of(Candidate::product);
    return b.host ? available | Choice::set_of(Candidate::host) : available;
  }

  // Without measuring. Under the rule that results have the same bits from run to run, packing changes none of them.
  Candidate by_rule(const ContractionPlan& b, Choice::Set available) const {
    if (available & Choice::set_of(Candidate::packed)) return Candidate::packed;
    if (!(available & Choice::set_of(Candidate::plain))) return Candidate::host;
    const bool pinned = settings_.contractions.deterministic || !(available & Choice::set_of(Candidate::host));
    return b.needs_packing && !b.packing_is_cheap && !pinned ? Candidate::host : Candidate::plain;
  }

  void run(const ContractionPlan& built, const ContractionArgs& args, const RunContext& context, const void* prepared,
           Candidate candidate) const {
    static const Operation kDot{{Op::dot, {}}, {}, {}};
    if (candidate == Candidate::host) run_host(step_.operation, *built.host, args.operands[0], args.operands[1], args);
    else if (candidate == Candidate::tiles)
      built.tiles->run(args.operands[0], prepared, args.bias, args.epilogue, args.result, *context.threads);
    else if (candidate == Candidate::product) run_host(kDot, *built.product, args.operands[1], args.operands[0], args);
    else run_library(built, args, context, candidate == Candidate::packed ? prepared : nullptr);
  }

  void run_host(const Operation& operation, const HostForm& form, const void* x, const void* weight, const ContractionArgs& args) const {
    HostWindow operands[8];
    for (size_t i = 0; i < form.operands.size(); ++i) operands[i] = host_window(form.operands[i], args.epilogue[i]);
    settings_.host_contraction({operation, host_window(form.x, x), host_window(form.weight, weight),
                                form.bias ? host_window(*form.bias, args.bias) : HostWindow{}, host_window(form.result, args.result),
                                form.padding, form.output_padding, step_.epilogue, std::span(operands, form.operands.size())});
  }

  static void copy_operand(const onednn::Operand& from, const void* memory, void* to, const RunContext& context) {
    copy_to_dense(from.dims, from.strides, element_bytes(from.dtype), memory, to, *context.threads);
  }

  static void run_library(const ContractionPlan& built, const ContractionArgs& args, const RunContext& context, const void* prepared) {
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
    size_t copied_bytes = built.copied ? round_up(bytes_of(*built.copied)) : 0,
           bias_bytes = built.copied_bias ? round_up(bytes_of(*built.copied_bias)) : 0;
    size_t source_bytes = built.source_reorder ? round_up(p.src_bytes()) : 0,
           result_bytes = built.result_reorder || built.epilogue ? round_up(p.dst_bytes()) : 0;
    // Where the epilogue is a kernel, its operand lies between: the result, or the result back in a plain layout.
    size_t product_bytes = built.epilogue && built.result_reorder ? round_up(built.result_reorder->dst_bytes()) : 0;
    size_t own = p.scratchpad_bytes();
    for (const auto& r : {built.source_reorder, built.result_reorder})
      if (r) own = std::max(own, r->scratchpad_bytes());
    auto* scratch =
        static_cast<std::byte*>(aligned_scratch(memory, bias_bytes + copied_bytes + source_bytes + result_bytes + product_bytes + own));
    const void *source = args.operands[0], *bias = args.bias;
    if (built.copied_bias) {
      copy_operand(*built.copied_bias, bias, scratch, context);
      bias = scratch;
      scratch += bias_bytes;
    }
    if (built.copied) {
      copy_operand(*built.copied, source, scratch, context);
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
      p.run(source, weight, built.biased ? bias : nullptr, product, {}, own_scratch);
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
    p.run(source, weight, bias, result, {operands, count}, own_scratch);
    if (built.result_reorder) built.result_reorder->run(result, nullptr, nullptr, args.result, {}, own_scratch);
  }

  static void run_epilogue(const ContractionPlan& built, const ContractionArgs& args, const RunContext& context, void* product) {
    void* buffers[11];
    size_t count = 0;
    buffers[count++] = product;
    if (!built.biased) buffers[count++] = args.bias;
    for (void* operand : args.epilogue) buffers[count++] = operand;
    buffers[count++] = args.result;
    built.epilogue->launch(buffers, nullptr, context);
  }

  static size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }
  std::shared_ptr<const ContractionPlan> at(std::span<const int64_t> symbols) const { return is_static_ ? fixed_ : for_sizes(symbols); }

  std::shared_ptr<const ContractionPlan> for_sizes(std::span<const int64_t> symbols) const {
    std::vector<int64_t> key(symbols.begin(), symbols.end());
    std::lock_guard lock(mutex_);
    if (!built_) built_.emplace(std::clamp(kMostBuilt / static_cast<size_t>(changing_.load()), kFewestSizes, kMostSizes));
    if (auto known = built_->find(key)) return *known;
    return built_->insert(std::move(key), std::make_shared<const ContractionPlan>(plan_contraction(step_, settings_, symbols, false)));
  }

  // Sizes of which primitives are kept, so that all contractions that the process has together keep about so many: some 64 KiB each.
  static constexpr size_t kMostBuilt = 16384, kMostSizes = 1024, kFewestSizes = 64;
  static inline std::atomic<int64_t> changing_ = 0;  // contractions of changing sizes

  ContractionStep step_;
  CompileSettings settings_;
  bool is_static_ = false;
  std::shared_ptr<const ContractionPlan> fixed_;
  mutable std::mutex mutex_;
  mutable std::optional<RecentlyUsed<std::vector<int64_t>, std::shared_ptr<const ContractionPlan>>> built_;
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

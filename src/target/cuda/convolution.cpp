#include "target/cuda/convolution.h"

#include <algorithm>

#include "support/error.h"
#include "target/cuda/cudnn.h"
#include "target/cuda/libraries.h"

namespace broach::cuda {

namespace {

// Whether its channels lie side by side, and its elements without gaps.
bool is_channels_last(const Window& t) {
  int64_t stride = 1;
  for (size_t d : {1u, 3u, 2u, 0u}) {
    if (t.sizes[d] != 1 && t.strides[d] != stride) return false;
    stride *= t.sizes[d];
  }
  return true;
}

// [n, c, w] as [n, c, 1, w].
void add_height(Operand& o) {
  if (o.type.rank() != 3) return;
  const SymInt row = o.place.strides[2] * o.type.shape[2];
  o.type.shape.insert(o.type.shape.begin() + 2, SymInt(1));
  o.place.strides.insert(o.place.strides.begin() + 2, row);
}

// The same along one dimension as along two, of which the first is a single point: cuDNN has none along one.
ContractionStep as_images(ContractionStep s) {
  if (s.result.type.rank() != 3) return s;
  Operation& n = s.operation;
  auto put = [&](Attr a, size_t at, const auto& one) {
    auto found = n.attrs.find(a);
    if (found == n.attrs.end()) return;
    auto& list = std::get<std::vector<std::decay_t<decltype(one)>>>(found->second);
    list.insert(list.begin() + static_cast<ptrdiff_t>(at), one);
  };
  for (Attr a : {Attr::stride, Attr::dilation}) put(a, 0, int64_t{1});
  for (Attr a : {Attr::padding, Attr::output_padding}) put(a, 0, SymInt(0));
  put(Attr::shape, 2, SymInt(1));
  for (Operand& o : s.operands) add_height(o);
  for (Epilogue& e : s.epilogue)
    if (e.operand) add_height(*e.operand);
  add_height(s.result);
  return s;
}

class Convolution : public CompiledContraction {
 public:
  // Of two spatial dimensions, or of one.
  Convolution(const ContractionStep& step, const CompileSettings& settings)
      : step_(as_images(step)),
        host_(settings.host_contraction),
        is_library_(settings.contractions.library && !settings.contractions.measures),
        deterministic_(settings.contractions.deterministic) {
    const Shape padding = step_.operation.sizes(Attr::padding);
    if (has_fixed_sizes(step_) && std::ranges::all_of(padding, &SymInt::is_constant)) fixed_ = plan({}, step.result.type.device.index);
  }

  void run(const ContractionArgs& args, const RunContext& run) const override {
    const std::shared_ptr<const ConvolutionPlan> known = fixed_ ? fixed_ : plan(run.symbols, run.device.index);
    if (known && run_by(*known, args, run)) return;
    if (run.recording && !calls_host()) unsupported("cuda: a convolution of the host's library is not recorded");
    run_by_host(args, run);
  }

  bool calls_host() const override { return !fixed_; }

  // A copy of the weight with its channels last, if they are not. Unknown are sizes that change, and what cuDNN takes itself.
  int64_t host_bytes() const override {
    const Operand& weight = step_.operands[1];
    const Shape& sizes = weight.type.shape;
    const auto elements = product(sizes).maybe_constant();
    const bool is_last = weight.place.strides[1] == SymInt(1) || (sizes[2] == SymInt(1) && sizes[3] == SymInt(1));
    return fixed_ || is_last || !elements ? 0 : *elements * size_of(weight.type.dtype);
  }

  std::string pick(std::span<const int64_t> symbols) const override {
    return fixed_ || plan(symbols, step_.result.type.device.index) ? "cudnn" : "aten";
  }

 private:
  using Wanted = LibraryConvolution::Wanted;

  Wanted wanted() const {
    if (step_.operation.op == Op::conv_weight_gradient) return Wanted::weight;
    return step_.operation.integer(Attr::transposed) ? Wanted::x : Wanted::y;
  }

  // Null where the library does not take it. What ATen lays anew for it are windows with gaps, and what is empty nobody computes.
  std::shared_ptr<const ConvolutionPlan> plan(std::span<const int64_t> symbols, int device) const {
    const Operation& n = step_.operation;
    if (!is_library_ || n.integer(Attr::groups) != 1 || step_.result.type.rank() != 4) return nullptr;
    const Window a = window(step_.operands[0], symbols), b = window(step_.operands[1], symbols), c = window(step_.result, symbols);
    for (const Window* w : {&a, &b, &c})
      if (!is_channels_last(*w) || w->dtype != c.dtype || std::ranges::find(w->sizes, 0) != w->sizes.end()) return nullptr;
    LibraryConvolution l;
    l.wanted = wanted(), l.dtype = c.dtype, l.deterministic = deterministic_;
    l.x = l.wanted == Wanted::x ? c.sizes : a.sizes;
    l.weight = l.wanted == Wanted::weight ? c.sizes : b.sizes;
    l.y = l.wanted == Wanted::y ? c.sizes : l.wanted == Wanted::x ? a.sizes : b.sizes;
    l.padding = evaluated<Sizes>(n.sizes(Attr::padding), symbols);
    l.stride = n.ints(Attr::stride), l.dilation = n.ints(Attr::dilation);
    return describe_what_follows(l, symbols) ? convolution_plan(l, device) : nullptr;
  }

  // A bias, a sum and relu, in this order.
  bool describe_what_follows(LibraryConvolution& l, std::span<const int64_t> symbols) const {
    if (step_.bias) l.bias = step_.bias->type.dtype;
    for (const Epilogue& e : step_.epilogue) {
      if (l.relu) return false;
      if (e.op == Op::relu) l.relu = true;
      else if (l.adds || e.op != Op::add) return false;
      else l.adds = true;
      if (!e.operand) continue;
      const Window added = window(*e.operand, symbols);
      if (!is_channels_last(added) || added.sizes != l.y || added.dtype != l.dtype) return false;
    }
    return l.wanted == Wanted::y || !(l.bias || l.adds || l.relu);
  }

  bool run_by(const ConvolutionPlan& known, const ContractionArgs& args, const RunContext& run) const {
    constexpr uintptr_t kAligned = 16;
    void *a = args.operands[0], *b = args.operands[1], *c = args.result, *added = args.epilogue.empty() ? nullptr : args.epilogue[0];
    for (void* p : {a, b, c, args.bias, added})
      if (reinterpret_cast<uintptr_t>(p) % kAligned != 0) return false;
    enter_device(run.device.index);
    switch (wanted()) {
      case Wanted::y: known.run({a, b, c, args.bias, added}, run); break;
      case Wanted::x: known.run({c, b, a, nullptr, nullptr}, run); break;
      case Wanted::weight: known.run({a, c, b, nullptr, nullptr}, run); break;
    }
    return true;
  }

  void run_by_host(const ContractionArgs& args, const RunContext& run) const {
    const Operation& n = step_.operation;
    const Window x = window(step_.operands[0], run.symbols), weight = window(step_.operands[1], run.symbols),
                 result = window(step_.result, run.symbols), bias = step_.bias ? window(*step_.bias, run.symbols) : Window{};
    for (int64_t size : result.sizes)
      if (size == 0) return;
    const auto padding = evaluated<Sizes>(n.sizes(Attr::padding), run.symbols);
    const auto output_padding = n.op == Op::conv ? evaluated<Sizes>(n.sizes(Attr::output_padding), run.symbols) : Sizes();
    std::vector<Window> windows;
    std::vector<HostWindow> operands;
    for (const Epilogue& e : step_.epilogue)
      if (e.operand) windows.push_back(window(*e.operand, run.symbols));
    for (size_t i = 0; i < windows.size(); ++i) operands.push_back(windows[i].at(args.epilogue[i]));
    enter_device(run.device.index);
    host_({n, x.at(args.operands[0]), weight.at(args.operands[1]), step_.bias ? bias.at(args.bias) : HostWindow{}, result.at(args.result),
           padding, output_padding, step_.epilogue, operands, run.device});
  }

  ContractionStep step_;
  HostContractionFunction host_;
  bool is_library_, deterministic_;
  std::shared_ptr<const ConvolutionPlan> fixed_;
};

}  // namespace

bool has_convolutions(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

// The library has engines for a bias, for relu behind it, and for a sum with a residual between the two. It makes 0 of a NaN that relu would
// keep. Convolutions of groups, or of three spatial dimensions, are faster as eager makes them.
ContractionAbility convolution_ability(Op op, DType dtype) {
  ContractionAbility a;
  a.bias = op == Op::conv, a.bias_of_dilated = false, a.channels_last = a.lays_weights = true, a.grouped = false, a.ranks = {3, 4};
  a.far_padding = false;
  if (op != Op::conv) return a;
  a.channel_piece = 8, a.unfolds_from = int64_t{1} << 27;
  a.activations = {Op::relu}, a.binaries = {Op::add}, a.most_epilogues = 2, a.residuals_only = true;
  if (dtype == DType::bf16) a.scales_weights = ScalesWeights::in_calls;  // what the library has for scales is compiled as it runs
  return a;
}

std::shared_ptr<const CompiledContraction> make_convolution(const ContractionStep& step, const CompileSettings& settings) {
  if (!settings.host_contraction || !has_convolutions(step.result.type.dtype) || !step.side_results.empty()) return nullptr;
  return std::make_shared<Convolution>(step, settings);
}

}  // namespace broach::cuda

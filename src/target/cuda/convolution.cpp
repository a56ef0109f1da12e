#include "target/cuda/convolution.h"

#include "target/cuda/libraries.h"
#include "target/cuda/product_form.h"

namespace broach::cuda {

namespace {

Window window(const Operand& o, std::span<const int64_t> symbols) {
  return {evaluated<Sizes>(o.type.shape, symbols), evaluated<Sizes>(o.place.strides, symbols), o.type.dtype};
}

class Convolution : public CompiledContraction {
 public:
  Convolution(const ContractionStep& step, HostContractionFunction host) : step_(step), host_(host) {}

  void run(const ContractionArgs& args, const RunContext& run) const override {
    const Operation& n = step_.operation;
    const Window x = window(step_.operands[0], run.symbols), weight = window(step_.operands[1], run.symbols),
                 result = window(step_.result, run.symbols), bias = step_.bias ? window(*step_.bias, run.symbols) : Window{};
    for (int64_t size : result.sizes)
      if (size == 0) return;
    const auto padding = evaluated<Sizes>(n.sizes(Attr::padding), run.symbols);
    const auto output_padding = n.op == Op::conv ? evaluated<Sizes>(n.sizes(Attr::output_padding), run.symbols) : Sizes();
    enter_device(run.device.index);
    host_({n,
           x.at(args.operands[0]),
           weight.at(args.operands[1]),
           step_.bias ? bias.at(args.bias) : HostWindow{},
           result.at(args.result),
           padding,
           output_padding,
           step_.epilogue,
           {},
           run.device});
  }

  bool calls_host() const override { return true; }

  // A copy of the weight with its channels last, if they are not. Unknown are sizes that change, and what cuDNN takes itself.
  int64_t host_bytes() const override {
    const Operand& weight = step_.operands[1];
    const Shape& sizes = weight.type.shape;
    const auto elements = product(sizes).maybe_constant();
    const bool is_last = weight.place.strides[1] == SymInt(1) || (sizes[2] == SymInt(1) && sizes[3] == SymInt(1));
    return is_last || !elements ? 0 : *elements * size_of(weight.type.dtype);
  }

  std::string pick(std::span<const int64_t>) const override { return "aten"; }

 private:
  ContractionStep step_;
  HostContractionFunction host_;
};

}  // namespace

bool has_convolutions(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

// What stands behind one is a kernel. Those of groups, of one spatial dimension or of three are faster as eager makes them.
ContractionAbility convolution_ability(Op op) {
  ContractionAbility a;
  a.bias = op == Op::conv, a.channels_last = a.lays_weights = true, a.grouped = false, a.rank = 4;
  if (op == Op::conv) a.channel_piece = 8, a.unfolds_from = int64_t{1} << 27;
  return a;
}

std::shared_ptr<const CompiledContraction> make_convolution(const ContractionStep& step, const CompileSettings& settings) {
  if (!settings.host_contraction || !has_convolutions(step.result.type.dtype) || !step.side_results.empty()) return nullptr;
  return std::make_shared<Convolution>(step, settings.host_contraction);
}

}  // namespace broach::cuda

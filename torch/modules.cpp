#include "modules.h"

#include <torch/nn/modules.h>

#include <algorithm>
#include <typeindex>
#include <unordered_map>

namespace broach {

namespace {

using torch::nn::Module;

// Reads what Module keeps for its subclasses, without the copy that its public function makes.
struct Inside : Module {
  static const auto& parameters(const Module& m) { return m.*(&Inside::parameters_); }
};

using Visit = bool (*)(const at::Tensor&, void*);
// The tensors that a layer's forward reads: its members, which a program may assign without Module's lists noticing. False
// as soon as the visitor says so.
using Members = bool (*)(const Module&, Visit, void*);

template <class T>
bool members(const Module& module, Visit visit, void* state) {
  const auto& m = static_cast<const T&>(module);
  (void)m, (void)visit, (void)state;
#define BROACH_MEMBER(name)                                                        \
  if constexpr (requires { requires std::same_as<decltype(m.name), at::Tensor>; }) \
    if (!visit(m.name, state)) return false;
  BROACH_MEMBER(weight)
  BROACH_MEMBER(bias)
  BROACH_MEMBER(running_mean)
  BROACH_MEMBER(running_var)
  BROACH_MEMBER(num_batches_tracked)
  BROACH_MEMBER(weight_ih)
  BROACH_MEMBER(weight_hh)
  BROACH_MEMBER(bias_ih)
  BROACH_MEMBER(bias_hh)
  BROACH_MEMBER(in_proj_weight)
  BROACH_MEMBER(in_proj_bias)
  BROACH_MEMBER(bias_k)
  BROACH_MEMBER(bias_v)
  BROACH_MEMBER(q_proj_weight)
  BROACH_MEMBER(k_proj_weight)
  BROACH_MEMBER(v_proj_weight)
#undef BROACH_MEMBER
  return true;
}

using Layers = std::unordered_map<std::type_index, Members>;

template <class... T>
Layers layers() {
  return {{typeid(T), &members<T>}...};
}

// Left out are those that call functions of the program's own: Functional and TripletMarginWithDistanceLoss.
const Layers& own_layers() {
  using namespace torch::nn;
  static const Layers table =
      layers<SequentialImpl, ModuleListImpl, ModuleDictImpl, ParameterListImpl, ParameterDictImpl, IdentityImpl, LinearImpl, BilinearImpl,
             FlattenImpl, UnflattenImpl, EmbeddingImpl, EmbeddingBagImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl,
             ConvTranspose2dImpl, ConvTranspose3dImpl, BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl,
             InstanceNorm2dImpl, InstanceNorm3dImpl, LayerNormImpl, GroupNormImpl, LocalResponseNormImpl, DropoutImpl, Dropout2dImpl,
             Dropout3dImpl, AlphaDropoutImpl, FeatureAlphaDropoutImpl, ELUImpl, SELUImpl, CELUImpl, HardshrinkImpl, HardtanhImpl,
             LeakyReLUImpl, LogSigmoidImpl, SoftmaxImpl, SoftminImpl, LogSoftmaxImpl, Softmax2dImpl, PReLUImpl, ReLUImpl, ReLU6Impl,
             RReLUImpl, GLUImpl, GELUImpl, SiLUImpl, MishImpl, SigmoidImpl, SoftplusImpl, SoftshrinkImpl, SoftsignImpl, TanhImpl,
             TanhshrinkImpl, ThresholdImpl, MultiheadAttentionImpl, AvgPool1dImpl, AvgPool2dImpl, AvgPool3dImpl, MaxPool1dImpl,
             MaxPool2dImpl, MaxPool3dImpl, AdaptiveAvgPool1dImpl, AdaptiveAvgPool2dImpl, AdaptiveAvgPool3dImpl, AdaptiveMaxPool1dImpl,
             AdaptiveMaxPool2dImpl, AdaptiveMaxPool3dImpl, LPPool1dImpl, LPPool2dImpl, LPPool3dImpl, ReflectionPad1dImpl,
             ReflectionPad2dImpl, ReflectionPad3dImpl, ReplicationPad1dImpl, ReplicationPad2dImpl, ReplicationPad3dImpl, ZeroPad1dImpl,
             ZeroPad2dImpl, ZeroPad3dImpl, ConstantPad1dImpl, ConstantPad2dImpl, ConstantPad3dImpl, PixelShuffleImpl, PixelUnshuffleImpl,
             UpsampleImpl, FoldImpl, UnfoldImpl, CosineSimilarityImpl, PairwiseDistanceImpl, RNNImpl, LSTMImpl, GRUImpl, RNNCellImpl,
             LSTMCellImpl, GRUCellImpl, L1LossImpl, MSELossImpl, BCELossImpl, BCEWithLogitsLossImpl, KLDivLossImpl, HuberLossImpl,
             SmoothL1LossImpl, NLLLossImpl, CrossEntropyLossImpl, TransformerImpl, TransformerEncoderImpl, TransformerDecoderImpl,
             TransformerEncoderLayerImpl, TransformerDecoderLayerImpl>();
  return table;
}

bool visit_tensors(const Module& m, Visit visit, void* state) {
  for (const auto& p : Inside::parameters(m))
    if (!visit(p.value(), state)) return false;
  auto it = own_layers().find(typeid(m));
  if (it != own_layers().end()) return it->second(m, visit, state);  // all their buffers are members
  auto buffers = m.buffers(/*recurse=*/false);
  return std::all_of(buffers.begin(), buffers.end(), [&](const at::Tensor& t) { return visit(t, state); });
}

void read_below(const std::shared_ptr<Module>& module, ModuleTree& out) {
  out.modules.push_back(module);
  out.training.push_back(module->is_training());
  if (const auto* dictionary = dynamic_cast<const torch::nn::ModuleDictImpl*>(module.get()))
    out.dictionaries.emplace_back(dictionary, dictionary->size());
  visit_tensors(
      *module,
      [](const at::Tensor& t, void* tensors) {
        static_cast<std::vector<at::Tensor>*>(tensors)->push_back(t);
        return true;
      },
      &out.tensors);
  for (const auto& child : module->children()) read_below(child, out);
}

struct Walk {
  const ModuleTree& tree;
  size_t module = 0, tensor = 0;

  bool same(const Module& m) {
    if (module >= tree.modules.size() || tree.modules[module].get() != &m || tree.training[module] != m.is_training()) return false;
    ++module;
    bool tensors = visit_tensors(
        m,
        [](const at::Tensor& t, void* state) {
          auto& walk = *static_cast<Walk*>(state);
          return walk.tensor < walk.tree.tensors.size() && walk.tree.tensors[walk.tensor++].is_same(t);
        },
        this);
    if (!tensors) return false;
    auto children = m.children();
    return std::all_of(children.begin(), children.end(), [&](const auto& child) { return same(*child); });
  }
};

}  // namespace

bool ModuleTree::current() const {
  Walk walk{*this};
  return std::all_of(roots.begin(), roots.end(), [&](const auto& root) { return walk.same(*root); }) && walk.module == modules.size() &&
         walk.tensor == tensors.size() &&
         std::all_of(dictionaries.begin(), dictionaries.end(), [](const auto& d) { return d.first->size() == d.second; });
}

ModuleTree read_modules(const std::vector<std::shared_ptr<Module>>& roots) {
  ModuleTree tree;
  tree.roots = roots;
  for (const auto& root : roots) read_below(root, tree);
  return tree;
}

// A transformer's activation may be a function of the program's own.
static bool has_own_function(const Module& m) {
  auto in = [](const auto* layer) {
    return layer && std::holds_alternative<std::function<at::Tensor(const at::Tensor&)>>(layer->options.activation());
  };
  return in(dynamic_cast<const torch::nn::TransformerEncoderLayerImpl*>(&m)) ||
         in(dynamic_cast<const torch::nn::TransformerDecoderLayerImpl*>(&m));
}

std::string first_foreign_module(const ModuleTree& tree) {
  for (const auto& m : tree.modules) {
    const Module& module = *m;
    if (!own_layers().contains(typeid(module)) || has_own_function(module)) return module.name();
  }
  return "";
}

}  // namespace broach

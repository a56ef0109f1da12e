// Trains three models made of libtorch's layers, eagerly and compiled, from the same weights on the same data: a classifier of images,
// a small GPT, and a variational autoencoder with an optimizer for each half. Prints both loss curves and the time of a step.
//   train [--steps N] [--eager | --compiled]
#include <broach/broach.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

namespace {

using torch::Tensor;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

// ---- data, made here ----

// Images of 28x28 in which one of ten bright bars says the class.
std::tuple<Tensor, Tensor> images(int64_t n) {
  Tensor labels = torch::randint(10, {n}), x = 0.3 * torch::randn({n, 1, 28, 28});
  for (int64_t i = 0; i < n; ++i) x[i][0].narrow(0, 2 + 2 * labels[i].item<int64_t>(), 3).add_(1);
  return {x, labels};
}

// Tokens of which each is the one before plus the row's own step.
Tensor text(int64_t rows, int64_t length, int64_t vocabulary) {
  Tensor step = torch::randint(1, 7, {rows, 1}), start = torch::randint(vocabulary, {rows, 1});
  return (start + step * torch::arange(length).unsqueeze(0)).remainder(vocabulary);
}

// ---- models ----

struct BlockImpl : nn::Module {
  BlockImpl(int64_t width, int64_t heads)
      : heads(heads),
        before(register_module("before", nn::LayerNorm(nn::LayerNormOptions({width})))),
        behind(register_module("behind", nn::LayerNorm(nn::LayerNormOptions({width})))),
        qkv(register_module("qkv", nn::Linear(width, 3 * width))),
        out(register_module("out", nn::Linear(width, width))),
        up(register_module("up", nn::Linear(width, 4 * width))),
        down(register_module("down", nn::Linear(4 * width, width))) {}

  Tensor forward(const Tensor& x) {
    auto parts = qkv(before(x)).unflatten(-1, {3, heads, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
    Tensor mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    Tensor h = x + out(mixed.transpose(1, 2).flatten(2));
    return h + down(F::gelu(up(behind(h))));
  }

  int64_t heads;
  nn::LayerNorm before, behind;
  nn::Linear qkv, out, up, down;
};
TORCH_MODULE(Block);

struct GPTImpl : nn::Module {
  GPTImpl(int64_t vocabulary, int64_t length, int64_t width, int64_t layers)
      : tokens(register_module("tokens", nn::Embedding(vocabulary, width))),
        positions(register_parameter("positions", 0.02 * torch::randn({length, width}))),
        blocks(register_module("blocks", nn::Sequential())),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        head(register_module("head", nn::Linear(width, vocabulary))) {
    for (int64_t i = 0; i < layers; ++i) blocks->push_back(Block(width, 4));
  }
  Tensor forward(const Tensor& ids) { return head(norm(blocks->forward(tokens(ids) + positions))); }

  nn::Embedding tokens;
  Tensor positions;
  nn::Sequential blocks;
  nn::LayerNorm norm;
  nn::Linear head;
};
TORCH_MODULE(GPT);

struct AutoencoderImpl : nn::Module {
  AutoencoderImpl()
      : encoder(register_module("encoder", nn::Sequential(nn::Flatten(), nn::Linear(784, 256), nn::ReLU(), nn::Linear(256, 32)))),
        decoder(register_module("decoder", nn::Sequential(nn::Linear(16, 256), nn::ReLU(), nn::Linear(256, 784)))) {}

  // The image made again, and what the code's distribution differs from the normal one.
  std::tuple<Tensor, Tensor> forward(const Tensor& x) {
    auto parts = encoder->forward(x).chunk(2, 1);
    Tensor code = parts[0] + torch::exp(0.5 * parts[1]) * torch::randn_like(parts[0]);
    Tensor distance = -0.5 * (1 + parts[1] - parts[0].square() - parts[1].exp()).sum(1).mean();
    return {decoder->forward(code), distance};
  }

  nn::Sequential encoder, decoder;
};
TORCH_MODULE(Autoencoder);

// ---- training ----

struct Curve {
  std::vector<double> losses, seconds;
};

// `loss` of one step; `optimizers` take one each.
Curve train(int steps, const std::vector<torch::optim::Optimizer*>& optimizers, const std::function<Tensor()>& loss) {
  Curve out;
  torch::manual_seed(1);
  for (int i = 0; i < steps; ++i) {
    auto start = std::chrono::steady_clock::now();
    for (auto* o : optimizers) o->zero_grad();
    Tensor value = loss();
    value.backward();
    for (auto* o : optimizers) o->step();
    out.losses.push_back(value.item<double>());
    out.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return out;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void print(const char* how, const Curve& c) {
  std::printf("  %-9s first step %7.0f ms, median %8.3f ms; loss", how, 1e3 * c.seconds.front(), 1e3 * median(c.seconds));
  for (size_t i = 0; i < c.losses.size(); i += std::max<size_t>(1, c.losses.size() / 8)) std::printf(" %.4f", c.losses[i]);
  std::printf(" %.4f\n", c.losses.back());
}

struct Chosen {
  int steps = 50;
  bool eager = true, compiled = true;
};

// `run(compiled)` trains a model made anew. Returns whether the curves agree.
bool compare(const char* name, const Chosen& chosen, const std::function<Curve(bool)>& run) {
  std::printf("%s\n", name);
  Curve want, got;
  if (chosen.eager) print("eager", want = run(false));
  if (chosen.compiled) print("compiled", got = run(true));
  if (!chosen.eager || !chosen.compiled) return true;
  double worst = 0;
  for (size_t i = 0; i < want.losses.size(); ++i)
    worst = std::max(worst, std::abs(want.losses[i] - got.losses[i]) / std::max(1.0, std::abs(want.losses[i])));
  std::printf("  largest difference of the losses %.1e, %.2fx as fast\n", worst, median(want.seconds) / median(got.seconds));
  return worst < 1e-3;
}

Curve classifier(int steps, bool compiled) {
  torch::manual_seed(0);
  auto [x, labels] = images(64);
  nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)), nn::BatchNorm2d(16), nn::ReLU(), nn::MaxPool2d(2),
                       nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1)), nn::BatchNorm2d(32), nn::ReLU(), nn::MaxPool2d(2),
                       nn::Flatten(), nn::Linear(32 * 7 * 7, 10));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto fast = broach::compile(model);
  return train(steps, {&optimizer},
               [&, x = x, labels = labels] { return F::cross_entropy(compiled ? fast(x) : model->forward(x), labels); });
}

Curve gpt(int steps, bool compiled) {
  constexpr int64_t kVocabulary = 256, kLength = 64;
  torch::manual_seed(0);
  Tensor ids = text(8, kLength + 1, kVocabulary), from = ids.narrow(1, 0, kLength).contiguous(), to = ids.narrow(1, 1, kLength).flatten();
  GPT model(kVocabulary, kLength, 128, 4);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  auto fast = broach::compile(model, broach::Options().pure());  // it depends on nothing but its input and its tensors
  return train(steps, {&optimizer}, [&] {
    Tensor scores = compiled ? fast(from) : model->forward(from);
    return F::cross_entropy(scores.flatten(0, 1), to);
  });
}

Curve autoencoder(int steps, bool compiled) {
  torch::manual_seed(0);
  Tensor x = torch::sigmoid(std::get<0>(images(64)));
  Autoencoder model;
  torch::optim::Adam encoder(model->encoder->parameters(), torch::optim::AdamOptions(1e-3));
  torch::optim::Adam decoder(model->decoder->parameters(), torch::optim::AdamOptions(2e-3));
  auto fast = broach::compile(model, broach::Options().pure());
  return train(steps, {&encoder, &decoder}, [&] {
    auto [made, distance] = compiled ? fast(x) : model->forward(x);
    return F::binary_cross_entropy_with_logits(made, x.flatten(1)) + 1e-3 * distance;
  });
}

}  // namespace

int main(int count, char** arguments) {
  Chosen chosen;
  for (int i = 1; i < count; ++i) {
    const std::string a = arguments[i];
    if (a == "--steps" && i + 1 < count) chosen.steps = std::max(1, std::atoi(arguments[++i]));
    else if (a == "--eager") chosen.compiled = false;
    else if (a == "--compiled") chosen.eager = false;
    else return std::fprintf(stderr, "usage: train [--steps N] [--eager | --compiled]\n"), 2;
  }
  bool same = compare("classifier of 64 images", chosen, [&](bool c) { return classifier(chosen.steps, c); });
  same &= compare("GPT, 4 layers 128 wide, 8x64 tokens", chosen, [&](bool c) { return gpt(chosen.steps, c); });
  same &= compare("variational autoencoder, two optimizers", chosen, [&](bool c) { return autoencoder(chosen.steps, c); });
  return same ? 0 : 1;
}

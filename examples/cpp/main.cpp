// Compiles an MLP and a small convolutional network made of libtorch's layers, compares them with eager and times both.
#include <broach/broach.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

namespace {

using torch::Tensor;
namespace nn = torch::nn;

double seconds(const std::function<void()>& run) {
  auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void row(const char* name, nn::Sequential module, const Tensor& x) {
  module->eval();
  auto fast = broach::compile(module);
  double first = seconds([&] { fast(x); });
  Tensor want = module->forward(x), got = fast(x);
  double error = ((got - want).abs().max() / want.abs().max()).item<double>();
  std::vector<double> eager, compiled;
  for (int i = 0; i < 50; ++i) {
    eager.push_back(seconds([&] { module->forward(x); }));
    compiled.push_back(seconds([&] { fast(x); }));
  }
  broach::Explanation e = fast.explain();
  std::printf("%-10s %9.3f %9.3f %8.2fx %8.0f %10.1e %8d %8d %8zu\n", name, 1e3 * median(eager), 1e3 * median(compiled),
              median(eager) / median(compiled), 1e3 * first, error, e.kernels, e.contractions, e.externs.size());
}

}  // namespace

int main() {
  torch::NoGradGuard no_grad;
  torch::manual_seed(0);
  nn::Sequential mlp(nn::Linear(512, 1024), nn::LayerNorm(nn::LayerNormOptions({1024})), nn::GELU(), nn::Linear(1024, 1024), nn::SiLU(),
                     nn::Linear(1024, 10), nn::LogSoftmax(1));
  nn::Sequential convnet(nn::Conv2d(nn::Conv2dOptions(3, 32, 3).padding(1)), nn::BatchNorm2d(32), nn::ReLU(), nn::MaxPool2d(2),
                         nn::Conv2d(nn::Conv2dOptions(32, 64, 3).padding(1)), nn::BatchNorm2d(64), nn::ReLU(), nn::AdaptiveAvgPool2d(1),
                         nn::Flatten(), nn::Linear(64, 10));
  std::printf("%-10s %9s %9s %9s %8s %10s %8s %8s %8s\n", "", "eager ms", "ms", "speed-up", "first ms", "error", "kernels", "contr.",
              "externs");
  row("MLP", mlp, torch::randn({64, 512}));
  row("convnet", convnet, torch::randn({8, 3, 64, 64}));

  // A function of one's own: pure() says that it depends on its inputs alone.
  auto scaled = broach::compile([](const Tensor& a, const Tensor& b) { return torch::sigmoid(a) * b + a; }, broach::Options().pure());
  Tensor a = torch::randn({1000, 1000}), b = torch::randn({1000, 1000});
  scaled(a, b);
  std::printf("\na function of two tensors, largest difference: %g\n",
              (scaled(a, b) - (torch::sigmoid(a) * b + a)).abs().max().item<double>());
  // One that calls modules names them, so that train(), eval() and parameters put in another's place are noticed.
  auto scores = broach::compile([&](const Tensor& x, double temperature) { return torch::softmax(mlp->forward(x) / temperature, 1); },
                                broach::uses(mlp), broach::Options().pure());
  Tensor x = torch::randn({64, 512});
  scores(x, 0.5);
  std::printf("a function of a module and a number, largest difference: %g\n",
              (scores(x, 0.5) - torch::softmax(mlp->forward(x) / 0.5, 1)).abs().max().item<double>());
  std::printf("\nwhat was compiled of it:\n%s", scores.explain().str().c_str());
}

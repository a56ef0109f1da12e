// The C++ API as a program of libtorch uses it, in a process without Python.
#define DOCTEST_CONFIG_IMPLEMENT
#include <broach/broach.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <fstream>
#include <thread>

#undef CHECK  // c10's, which ends the process
#include <doctest/doctest.h>

#include "errors.h"

namespace nn = torch::nn;
using broach::Options;
using torch::Tensor;

namespace {

bool close(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.strides() == b.strides() && torch::allclose(a, b, 1e-4, 1e-5);
}

nn::Sequential mlp() {
  return nn::Sequential(nn::Linear(16, 32), nn::GELU(), nn::LayerNorm(nn::LayerNormOptions({32})), nn::Linear(32, 4));
}

// A module with host code of its own, whose runs are counted.
struct GatedImpl : nn::Module {
  GatedImpl()
      : a(register_module("a", nn::Linear(8, 8))),
        b(register_module("b", nn::Linear(8, 8))),
        scale(register_buffer("scale", torch::full({1}, 2.0))) {}
  Tensor forward(const Tensor& x) {
    ++runs;
    return a(x) * torch::sigmoid(b(x)) * scale;
  }
  nn::Linear a, b;
  Tensor scale;
  std::atomic<int> runs{0};
};
TORCH_MODULE(Gated);

}  // namespace

TEST_CASE("no Python is loaded") {
  torch::NoGradGuard no_grad;
  broach::compile([](Tensor x) { return x + 1; }, Options().pure())(torch::ones({4}));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    CHECK(!has(line, "libpython"));
    CHECK(!has(line, "libtorch_python"));
  }
}

TEST_CASE("functions of one tensor, of several, with several results") {
  torch::NoGradGuard no_grad;
  Tensor x = torch::randn({5, 7}), y = torch::randn({5, 7});
  auto one = broach::compile(std::function<Tensor(Tensor)>([](Tensor t) { return (t * 2).relu() + 1; }), Options().pure());
  auto two = broach::compile([](const Tensor& a, const Tensor& b) { return std::make_tuple(a + b, (a - b).exp(), a); }, Options().pure());
  auto list = broach::compile([](const broach::Tensors& t) { return broach::Tensors{t[0] + t[1], Tensor(), t[1].t()}; }, Options().pure());
  for (int i = 0; i < 3; ++i) {
    CHECK(close(one(x), (x * 2).relu() + 1));
    auto [sum, grown, same] = two(x, y);
    CHECK(close(sum, x + y));
    CHECK(close(grown, (x - y).exp()));
    CHECK(same.is_same(x));
    CHECK(close(std::get<0>(two(x, x)), x + x));
    auto parts = list({x, y});
    REQUIRE(parts.size() == 3);
    CHECK(!parts[1].defined());
    CHECK(close(parts[2], y.t()));
  }
  CHECK(one.explain().compiled_calls == 2);
  CHECK(one.explain().kernels == 1);
}

TEST_CASE("the host code of a pure function runs once for each kind of inputs") {
  torch::NoGradGuard no_grad;
  int runs = 0;
  auto f = broach::compile([&](Tensor x) { return ++runs, x * 2; }, Options().pure());
  for (int i = 0; i < 3; ++i) f(torch::ones({4}));
  CHECK(runs == 1);
  CHECK(close(f(torch::ones({6})), torch::full({6}, 2.0)));
  CHECK((f(torch::ones({4}, torch::kLong)).scalar_type() == torch::kLong));
  CHECK(close(f(torch::ones({4, 4}).t()), torch::ones({4, 4}).t() * 2));
  CHECK(runs == 4);
  auto e = f.explain();
  CHECK(e.programs == 4);
  REQUIRE(e.recompilations.size() == 3);
  CHECK(has(e.recompilations[0], "size 0 was 4, is 6"));
  CHECK(has(e.str(), "recompiled"));
}

TEST_CASE("modules of libtorch's layers need no promise") {
  torch::NoGradGuard no_grad;
  auto module = mlp();
  auto fast = broach::compile(module, Options());
  for (int i = 0; i < 3; ++i) {
    Tensor x = torch::randn({3, 16});
    CHECK(close(fast(x), module->forward(x)));
  }
  CHECK(fast.explain().compiled_calls == 2);
  CHECK(fast.explain().contractions == 2);

  nn::Sequential conv(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8), nn::ReLU(), nn::MaxPool2d(2));
  conv->eval();
  auto fast_conv = broach::compile(conv);
  Tensor image = torch::randn({2, 3, 8, 8});
  for (int i = 0; i < 3; ++i) CHECK(close(fast_conv(image), conv->forward(image)));

  nn::Linear linear(4, 4);
  auto by_pointer = broach::compile(std::shared_ptr<nn::LinearImpl>(linear.ptr()));
  CHECK(close(by_pointer(torch::ones({2, 4})), linear(torch::ones({2, 4}))));
}

TEST_CASE("results of several tensors from a module") {
  torch::NoGradGuard no_grad;
  nn::LSTM lstm(nn::LSTMOptions(4, 6));
  auto fast = broach::compile(lstm, Options().fallback());
  Tensor x = torch::randn({5, 2, 4});
  for (int i = 0; i < 2; ++i) {
    auto [y, state] = fast(x);
    auto [want, want_state] = lstm(x);
    CHECK(close(y, want));
    CHECK(close(std::get<1>(state), std::get<1>(want_state)));
  }
}

TEST_CASE("a module's training flag") {
  torch::NoGradGuard no_grad;
  nn::BatchNorm1d norm(8);
  nn::Sequential m(nn::Linear(8, 8), norm, nn::Dropout(0.5));
  m->eval();
  auto fast = broach::compile(m);
  Tensor x = torch::randn({64, 8});
  for (int i = 0; i < 2; ++i) CHECK(close(fast(x), m->forward(x)));
  m->train();
  Tensor before = norm->running_mean.clone();
  Tensor y = fast(x), z = fast(x);
  CHECK((y == 0).sum().item<int64_t>() > 100);  // dropped
  CHECK(!torch::equal(y, z));
  CHECK(!torch::equal(before, norm->running_mean));
  CHECK(norm->num_batches_tracked.item<int64_t>() == 2);
  m->eval();
  CHECK(close(fast(x), m->forward(x)));
}

TEST_CASE("dropout by a counter") {
  nn::Sequential m(nn::Dropout(0.5));
  auto fast = broach::compile(m, Options().counter_random());
  Tensor x = torch::ones({64, 64}, torch::requires_grad());
  for (int i = 0; i < 4; ++i) {
    Tensor y = fast(x);
    CHECK(torch::equal(torch::autograd::grad({y.sum()}, {x})[0], y.detach()));  // 0 where it dropped, 2 elsewhere
  }
  torch::NoGradGuard no_grad;
  fast(x);
  torch::manual_seed(3);
  Tensor y = fast(x), z = fast(x);
  torch::manual_seed(3);
  CHECK(torch::equal(fast(x), y));
  CHECK(!torch::equal(y, z));
  CHECK(std::abs((y == 0).to(torch::kDouble).mean().item<double>() - 0.5) < 0.04);
  CHECK(fast.explain().externs.size() == 1);  // the seed
}

TEST_CASE("changes of parameters are noticed") {
  torch::NoGradGuard no_grad;
  nn::Linear linear(64, 64);
  auto fast = broach::compile(linear);
  Tensor x = torch::randn({1, 64});
  auto agree = [&] { return close(fast(x), linear(x)) && close(fast(x), linear(x)); };
  CHECK(agree());
  SUBCASE("one element") {
    linear->weight.index_put_({torch::tensor(3), torch::tensor(5)}, torch::tensor(100.0f));
    CHECK(agree());
    linear->weight.data()[1][2] = 50;
    CHECK(agree());
    linear->weight.mutable_data_ptr<float>()[7] = -30;
    CHECK(agree());
  }
  SUBCASE("another tensor in its place") {
    linear->weight = torch::randn({64, 64});
    CHECK(agree());
    linear->bias = Tensor();
    CHECK(agree());
  }
  SUBCASE("set_data and to") {
    linear->weight.set_data(torch::randn({64, 64}));
    CHECK(agree());
    linear->to(torch::kDouble);
    x = x.to(torch::kDouble);
    CHECK(agree());
  }
}

TEST_CASE("a changed structure is noticed") {
  torch::NoGradGuard no_grad;
  nn::Sequential m{nn::Linear(4, 4)};
  auto fast = broach::compile(m);
  Tensor x = torch::randn({2, 4});
  CHECK(close(fast(x), m->forward(x)));
  m->push_back(nn::Tanh());
  CHECK(close(fast(x), m->forward(x)));
  m->push_back(nn::Functional([](Tensor t) { return t + 1; }));
  CHECK(has(error_of([&] { fast(x); }), "Functional"));
}

TEST_CASE("host code of one's own needs the promise") {
  torch::NoGradGuard no_grad;
  Gated gated;
  std::string error = error_of([&] { broach::compile(gated, Options()); });
  CHECK(has(error, "GatedImpl"));
  CHECK(has(error, "pure()"));
  CHECK(has(error_of([] { broach::compile([](Tensor x) { return x; }, Options()); }), "pure()"));

  Tensor x = torch::randn({2, 8});
  CHECK(has(error_of([] { Options().threads(-1); }), "threads(-1): must be 0 or more"));
  CHECK(has(error_of([] { Options().verify(-2); }), "verify(-2): must be 0 or more"));
  auto fast = broach::compile(gated, Options().pure());
  Tensor want = gated(x);
  for (int i = 0; i < 4; ++i) CHECK(close(fast(x), want));
  CHECK(gated->runs == 2);
  gated->scale.fill_(3);
  CHECK(close(fast(x), want * 1.5));

  auto eager = broach::compile(gated, Options().fallback());
  gated->runs = 0;
  for (int i = 0; i < 4; ++i) eager(x);
  CHECK(gated->runs == 4);
  CHECK(eager.explain().eager_calls == 4);
  CHECK(has(eager.explain().str(), "GatedImpl"));
}

TEST_CASE("a value read on the host") {
  torch::NoGradGuard no_grad;
  auto reads = [](Tensor x) { return x.sum().item<float>() > 0 ? x + 1 : x - 1; };
  auto fast = broach::compile(reads, Options().pure());
  for (int i = 0; i < 2; ++i) {
    std::string error = error_of([&] { fast(torch::ones({4})); });
    CHECK(has(error, "_local_scalar_dense"));
    CHECK(has(error, "fallback(true)"));
  }
  auto lenient = broach::compile(reads, Options().pure().fallback());
  CHECK(close(lenient(torch::ones({4})), torch::full({4}, 2.0)));
  CHECK(close(lenient(-torch::ones({4})), torch::full({4}, -2.0)));
}

TEST_CASE("libtorch's own errors pass through") {
  torch::NoGradGuard no_grad;
  auto fast = broach::compile(nn::Linear(4, 4));
  CHECK_THROWS_AS(fast(torch::ones({2, 5})), c10::Error);
  CHECK_NOTHROW(fast(torch::ones({2, 4})));
}

TEST_CASE("backward runs compiled code, with changing sizes too") {
  torch::manual_seed(0);
  // No batch norm: libtorch's reads the sizes as plain numbers.
  nn::Sequential module(nn::Linear(8, 16), nn::LayerNorm(nn::LayerNormOptions({16})), nn::GELU(), nn::Linear(16, 3));
  auto twin = std::dynamic_pointer_cast<nn::SequentialImpl>(module->clone());
  auto fast = broach::compile(module);
  torch::optim::SGD ours(module->parameters(), 0.1), eagers(twin->parameters(), 0.1);
  for (int64_t n : {4, 4, 6, 9, 5, 7}) {
    Tensor x = torch::randn({n, 8}), y = x.clone();
    x.requires_grad_(), y.requires_grad_();
    ours.zero_grad(), eagers.zero_grad();
    Tensor got = fast(x).square().mean(), want = twin->forward(y).square().mean();
    got.backward(), want.backward();
    CHECK(close(got, want));
    CHECK(close(x.grad(), y.grad()));
    ours.step(), eagers.step();
    for (size_t i = 0; i < module->parameters().size(); ++i) CHECK(close(module->parameters()[i], twin->parameters()[i]));
  }
  auto e = fast.explain();
  CHECK(e.compiled_calls >= 3);
  CHECK(e.programs <= 2);
}

TEST_CASE("gradients of gradients run the program again") {
  auto cube = broach::compile([](Tensor x) { return x * x * x; }, Options().pure());
  for (int i = 0; i < 3; ++i) {
    Tensor x = torch::randn({5}, torch::requires_grad());
    Tensor once = torch::autograd::grad({cube(x).sum()}, {x}, {}, true, true)[0];
    CHECK(close(once, 3 * x * x));
    CHECK(close(torch::autograd::grad({once.sum()}, {x})[0], 6 * x));
  }
  CHECK(cube.explain().compiled_calls == 2);
}

TEST_CASE("gradients of gradients of what draws and writes") {
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), torch::nn::Tanh(), torch::nn::Dropout(0.5),
                            torch::nn::Linear(8, 1));
  auto twin = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  auto fast = broach::compile(twin);
  auto penalty = [](const Tensor& y, const Tensor& x) {
    Tensor g = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
    g.norm(2, 1).sub(1).pow(2).sum().backward();
    return g.detach();
  };
  for (int i = 0; i < 4; ++i) {
    Tensor x = torch::randn({6, 4}, torch::requires_grad());
    torch::manual_seed(i);
    Tensor want = penalty(net->forward(x), x);
    torch::manual_seed(i);
    CHECK(close(penalty(fast(x), x), want));
    for (size_t p = 0; p < net->parameters().size(); ++p) {
      const Tensor got = twin->parameters()[p].grad(), expected = net->parameters()[p].grad();
      CHECK(got.defined() == expected.defined());  // the last bias has none
      CHECK((!got.defined() || close(got, expected)));
    }
    for (size_t b = 0; b < net->buffers().size(); ++b)
      CHECK(close(twin->buffers()[b].to(torch::kFloat), net->buffers()[b].to(torch::kFloat)));
  }
  CHECK(fast.explain().compiled_calls >= 2);
}

TEST_CASE("gradients are eager's") {
  auto module = mlp();
  auto fast = broach::compile(module);
  Tensor x = torch::randn({3, 16});
  {
    torch::NoGradGuard no_grad;
    fast(x), fast(x);
  }
  auto gradients = [&](const std::function<Tensor()>& run) {
    module->zero_grad();
    run().pow(2).sum().backward();
    std::vector<Tensor> out;
    for (const Tensor& p : module->parameters()) out.push_back(p.grad().clone());
    return out;
  };
  auto want = gradients([&] { return module->forward(x); }), got = gradients([&] { return fast(x); });
  for (size_t i = 0; i < want.size(); ++i) CHECK(close(got[i], want[i]));

  Tensor held = torch::randn({4}, torch::requires_grad());
  auto f = broach::compile([&](Tensor t) { return t * held; }, Options().pure());
  Tensor y = f(torch::ones({4}));
  CHECK(y.requires_grad());
  CHECK(f(torch::ones({4})).requires_grad());
  torch::NoGradGuard no_grad;
  CHECK(!f(torch::ones({4})).requires_grad());
}

TEST_CASE("mutation and aliases") {
  torch::NoGradGuard no_grad;
  auto f = broach::compile([](Tensor x) { return x.add_(1).view(-1); }, Options().pure());
  for (int i = 0; i < 3; ++i) {
    Tensor x = torch::zeros({2, 3});
    Tensor y = f(x);
    CHECK(close(x, torch::ones({2, 3})));
    CHECK(y.is_alias_of(x));
  }
}

TEST_CASE("eight threads") {
  auto module = mlp();
  auto fast = broach::compile(module);
  std::vector<Tensor> x, want;
  {
    torch::NoGradGuard no_grad;
    for (int i = 0; i < 4; ++i) {
      x.push_back(torch::randn({i + 2, 16}));
      want.push_back(module->forward(x.back()));
    }
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      torch::NoGradGuard no_grad;
      for (int i = 0; i < 100; ++i) {
        size_t k = static_cast<size_t>(i + t) % x.size();
        if (!close(fast(x[k]), want[k])) ++wrong;
      }
    });
  for (auto& t : threads) t.join();
  CHECK(wrong == 0);
  CHECK(fast.explain().programs == 2);  // the first sizes, then any
}

int main(int argc, char** argv) { return doctest::Context(argc, argv).run(); }

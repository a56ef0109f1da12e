// What host code does to tensors besides operations, within a program that is promised to be pure: it shows in every call, or is refused.
#include <ATen/CPUGeneratorImpl.h>
#include <broach/broach.h>
#include <torch/torch.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#undef CHECK  // c10's, which ends the process
#include <doctest/doctest.h>

#include "errors.h"

using broach::Options;
using torch::Tensor;

namespace {

using Program = std::function<Tensor(Tensor)>;

// The text with which compiled calls are refused. Each that is not gives what eager does.
std::string refusal(const Program& program) {
  auto compiled = broach::compile(program, Options().pure());
  for (int i = 0; i < 4; ++i) {
    const Tensor x = torch::full({3, 4}, 0.5 + i), own = x.clone();
    const Tensor want = program(x);
    Tensor got;
    const std::string error = error_of([&] { got = compiled(own); });
    if (!error.empty()) return error;
    CHECK(torch::equal(got, want));
    CHECK(torch::equal(own, x));
  }
  return "";
}

// And asked for, such a program runs eagerly.
void check_refused(const Program& program, const char* why) {
  CHECK(has(refusal(program), why));
  auto lenient = broach::compile(program, Options().pure().fallback());
  for (int i = 0; i < 4; ++i) {
    const Tensor x = torch::full({3, 4}, 0.5 + i), own = x.clone();
    const Tensor want = program(x);
    CHECK(torch::equal(lenient(own), want));
    CHECK(torch::equal(own, x));
  }
}

}  // namespace

TEST_CASE("elements that host code writes") {
  torch::NoGradGuard no_grad;
  constexpr const char* why = "host code writes elements";
  check_refused(
      [](Tensor x) {
        Tensor mask = torch::full({3, 4}, -INFINITY);
        auto m = mask.accessor<float, 2>();
        for (int i = 0; i < 3; ++i)
          for (int j = 0; j <= i; ++j) m[i][j] = 0;
        return (x + mask).softmax(1);
      },
      why);
  check_refused(
      [](Tensor x) {
        Tensor b = torch::zeros({4});
        const std::vector<float> v{1, 2, 3, 4};
        std::memcpy(b.data_ptr(), v.data(), 16);
        return x + b;
      },
      why);
  check_refused([](Tensor x) { return x.data_ptr<float>()[1] = 7, x * 2; }, why);          // of an argument
  check_refused([](Tensor x) { return x.mul_(2), x.data_ptr<float>()[11] = 7, x; }, why);  // behind the last operation
  check_refused(
      [](Tensor x) {
        Tensor y = x * 2;
        return y.accessor<float, 2>()[2][3] = 7, y;
      },
      why);
  // Filled without an operation.
  check_refused(
      [](Tensor x) {
        Tensor m = torch::zeros({3, 4});
        return m[1] = at::tensor({1.f, 2.f, 3.f, 4.f}), x + m;
      },
      why);
  check_refused([](Tensor x) { return x.copy_(at::tensor({1.f, 2.f, 3.f, 4.f})) + 1; }, why);
  // torch::tensor tells of it.
  CHECK(refusal([](Tensor x) {
          Tensor m = torch::zeros({3, 4});
          return m[1] = torch::tensor({1.f, 2.f, 3.f, 4.f}), x + m;
        }) == "");
}

TEST_CASE("other memory, and generators of its own") {
  torch::NoGradGuard no_grad;
  check_refused(
      [](Tensor x) {
        Tensor y = torch::ones({3, 4});
        y.set_data(torch::full({3, 4}, 3.0));
        return x + y;
      },
      "set_data()");
  constexpr const char* why = "a generator that the program may make";
  check_refused([](Tensor x) { return x + torch::rand({3, 4}, at::make_generator<at::CPUGeneratorImpl>(42)); }, why);
  auto held = at::make_generator<at::CPUGeneratorImpl>(1);
  check_refused([held](Tensor x) mutable { return held.set_current_seed(5), x + torch::rand({3, 4}, held); }, why);
}

TEST_CASE("a number that indexing writes is no state of the program's") {
  torch::NoGradGuard no_grad;
  using namespace torch::indexing;
  std::vector<std::unique_ptr<char[]>> between;  // so that the next run's tensors lie elsewhere
  auto f = broach::compile(
      [&](Tensor x) {
        for (int i = 0; i < 20; ++i) between.push_back(std::make_unique<char[]>(200));
        x.index_put_({Slice(0, 2)}, 5.0);
        return x + 1;
      },
      Options().pure());
  for (int i = 0; i < 4; ++i) {
    Tensor x = torch::zeros({4});
    CHECK(torch::equal(f(x), torch::tensor({6.f, 6.f, 1.f, 1.f})));
    CHECK(torch::equal(x, torch::tensor({5.f, 5.f, 0.f, 0.f})));
  }
}

TEST_CASE("gradients that need the program again, when it is gone") {
  Tensor x = torch::tensor({0.1f, 0.2f, 0.3f}, torch::requires_grad());
  auto results = [&] {
    double k = 3;
    const Tensor w = torch::ones({3}) * 2;
    auto program = [&](Tensor a) {
      Tensor h = (a * w).pow(3);
      return std::vector<Tensor>{h, (h * k).sin()};
    };
    auto compiled = broach::compile(program, Options().pure());
    compiled(x);
    return compiled(x);
  };
  const char* why = "the compiled object is gone";
  auto r = results();
  CHECK(has(error_of([&] { torch::autograd::grad({r[1].sum()}, {r[0]}); }), why));
  r = results();
  CHECK(has(error_of([&] { torch::autograd::grad({r[1].sum()}, {x}, {}, true, /*create_graph=*/true); }), why));
  r = results();
  r[1].sum().backward();  // which compiled code gives
  CHECK(x.grad().defined());
  // A module is kept.
  torch::nn::Linear linear(3, 3);
  Tensor y = [&] {
    auto compiled = broach::compile(linear);
    compiled(x);
    return compiled(x);
  }();
  CHECK(torch::autograd::grad({y.pow(2).sum()}, {x}, {}, true, true)[0].requires_grad());
}

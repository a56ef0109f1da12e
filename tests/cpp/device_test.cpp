// Programs over tensors that do not lie on the CPU: on a device for tests whose memory is the host's, so that the CPU's target can
// serve it.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <broach/broach.h>
#include <c10/core/DeviceGuard.h>

#undef CHECK  // c10's, which ends the process
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>

#include "errors.h"
#include "host_device.h"
#include "like_cpu.h"

using at::Tensor;
using broach::Options;
using host_device::device;

namespace {

// While it lives, the device has a target.
struct Served {
  Served() { broach::set_target(broach::DeviceKind::privateuse1, broach::cpu_target()); }
  ~Served() { broach::set_target(broach::DeviceKind::privateuse1, nullptr); }
};

// The CPU's target as another: what its steps need of the host's is copied, as for a device with memory of its own.
class Apart : public LikeCpu {
 public:
  void copy(void* to, const void* from, size_t bytes, bool, const broach::RunContext&) const override {
    std::memcpy(to, from, bytes);
    ++copies;
  }
  bool must_wait() const override { return false; }

  mutable std::atomic<int> copies = 0;
};

Tensor random_on(at::Device d, at::IntArrayRef sizes) { return at::randn(sizes).to(d); }

bool close(const Tensor& got, const Tensor& want) {
  return got.device() == want.device() && got.sizes() == want.sizes() && at::allclose(got.cpu(), want.cpu(), 1e-4, 1e-5);
}

}  // namespace

TEST_CASE("devices: without a target the program runs eagerly, and the reason names the device") {
  at::NoGradGuard no_grad;
  auto f = broach::compile([](const Tensor& a, const Tensor& b) { return (a * 2).to(b.device()) + b; }, Options().pure());
  Tensor x = random_on(device(), {3}), y = at::randn({3}), none = at::empty({3}, at::kMeta);
  for (int i = 0; i < 2; ++i) CHECK(close(f(x, y), (x * 2).cpu() + y));
  CHECK(f(none, none).is_meta());
  CHECK(close(f(y, y), y * 3));
  CHECK(close(f(y, y), y * 3));
  auto e = f.explain();
  CHECK(e.compiled_calls == 1);
  REQUIRE(e.eager_reasons.size() == 2);
  CHECK(has(e.eager_reasons[0], "on privateuseone:0, a device that this build has no target for"));
  CHECK(has(e.eager_reasons[1], "on meta"));
}

TEST_CASE("devices: a program that moves its tensors to one without a target runs eagerly") {
  at::NoGradGuard no_grad;
  auto f = broach::compile([](const Tensor& a) { return (a.to(device()) * 2).cpu() + 1; }, Options().pure().fallback());
  Tensor x = at::randn({3});
  for (int i = 0; i < 2; ++i) CHECK(close(f(x), x * 2 + 1));
  REQUIRE(!f.explain().eager_reasons.empty());
  CHECK(has(f.explain().eager_reasons[0], "a tensor on privateuseone:0: this build has no target for that device"));
  auto strict = broach::compile([](const Tensor& a) { return a.to(at::kMeta); }, Options().pure());
  CHECK(has(error_of([&] { strict(x); }), "a tensor on meta"));
}

TEST_CASE("devices: results lie where eager's do") {
  at::NoGradGuard no_grad;
  Served served;
  Tensor w = random_on(device(), {8, 5}), b = random_on(device(), {5});
  auto f = broach::compile(
      [&](const Tensor& x) {
        Tensor y = at::gelu(at::addmm(b, x, w)) + at::ones({5}, x.options());
        return broach::Tensors{y.t(), at::zeros({3}, x.options()), y.sum(0).cpu(), at::cat({x, x}), std::get<0>(at::sort(x, 1))};
      },
      Options().pure());
  for (int64_t rows : {4, 4, 6, 7}) {  // the last ones by sizes that are symbols
    Tensor x = random_on(device(), {rows, 8});
    auto got = f(x);
    Tensor y = at::gelu(at::addmm(b.cpu(), x.cpu(), w.cpu())) + 1;
    const Tensor want[] = {y.t().to(device()), at::zeros({3}).to(device()), y.sum(0), at::cat({x.cpu(), x.cpu()}).to(device()),
                           std::get<0>(at::sort(x.cpu(), 1)).to(device())};
    for (size_t i = 0; i < got.size(); ++i) CHECK(close(got[i], want[i]));
  }
  CHECK(f.explain().compiled_calls == 2);
  CHECK(f.explain().programs == 2);
  CHECK(f.explain().eager_calls == 0);
}

TEST_CASE("devices: which of several, and which is the current one, is guarded") {
  at::NoGradGuard no_grad;
  Served served;
  auto f = broach::compile([](const Tensor& x) { return x + 1; }, Options().pure());
  for (int i : {0, 1, 0, 1}) {
    Tensor x = random_on(device(i), {4});
    CHECK(close(f(x), x + 1));
  }
  CHECK(f.explain().compiled_calls == 2);
  REQUIRE(f.explain().recompilations.size() == 1);
  CHECK(has(f.explain().recompilations[0], "its device was privateuseone:0, is privateuseone:1"));

  auto g = broach::compile([](const Tensor& x) { return at::full({2}, 3.0, x.options().device(at::kPrivateUse1)) + x.sum().cpu(); },
                           Options().pure());
  for (int i : {0, 1, 0, 1}) {
    c10::DeviceGuard on(device(i));
    CHECK(g(at::ones({2})).device() == device(i));
  }
  CHECK(g.explain().programs == 2);
  CHECK(has(g.explain().recompilations.at(0), "the current device was privateuseone:0, is privateuseone:1"));

  auto moves = broach::compile([](const Tensor& x) { return host_device::set_current(1), x + 1; }, Options().pure());
  CHECK(has(error_of([&] { moves(random_on(device(0), {4})); }), "changes the current device"));
  host_device::set_current(0);
}

TEST_CASE("devices: writes in place, and elements read on the host") {
  at::NoGradGuard no_grad;
  Served served;
  auto f = broach::compile(
      [](Tensor x, const Tensor& rows) {
        x.add_(1);
        rows.copy_(x.cpu());
        return (x.sum() > 0).item<bool>() ? x * 2 : x * 3;
      },
      Options().pure());
  for (float start : {1.0F, 1.0F, -9.0F, -9.0F, 1.0F}) {
    Tensor x = at::full({4}, start).to(device()), rows = at::zeros({4});
    Tensor got = f(x, rows), now = at::full({4}, start + 1);
    CHECK(close(x, now.to(device())));
    CHECK(close(rows, now));
    CHECK(close(got, (now * (start > 0 ? 2 : 3)).to(device())));
  }
  CHECK(f.explain().compiled_calls == 2);
}

TEST_CASE("devices: random numbers of each device are put back where a run is forgotten") {
  at::NoGradGuard no_grad;
  Served served;
  auto program = [](const Tensor& x) {
    Tensor drawn = at::rand({4}, x.options());
    return (x.sum() > 0).item<bool>() ? drawn + 1 : drawn - at::rand({4}, x.options());
  };
  auto f = broach::compile(program, Options().pure());
  for (int64_t sign : {1, -1, 1, -1, -1, 1}) {
    Tensor x = at::full({4}, static_cast<double>(sign)).to(device());
    host_device::set_seed(0, 3);
    Tensor want = program(x), after = at::rand({2}, x.options());
    host_device::set_seed(0, 3);
    CHECK(close(f(x), want));
    CHECK(close(at::rand({2}, x.options()), after));
  }
  auto seeds = broach::compile([](const Tensor& x) { return host_device::set_seed(0, 5), at::rand({4}, x.options()); }, Options().pure());
  std::string error;  // not at once, as another thread may have done it
  for (int call = 0; call < 8; ++call) {
    CHECK(error.empty());
    error = error_of([&] { seeds(random_on(device(), {1})); });
  }
  CHECK(has(error, "sets the state of random numbers"));
}

TEST_CASE("devices: autocast of a device is a mode of its calls") {
  at::NoGradGuard no_grad;
  Served served;
  auto f = broach::compile([](const Tensor& x) { return x + 1; }, Options().pure());
  for (bool on : {false, true, false, true}) {
    at::autocast::set_autocast_enabled(at::kPrivateUse1, on);
    f(random_on(device(), {4}));
  }
  at::autocast::set_autocast_enabled(at::kPrivateUse1, false);
  CHECK(f.explain().programs == 2);
  CHECK(f.explain().compiled_calls == 2);
}

TEST_CASE("devices: a program with tensors on both sides, whose targets differ") {
  at::NoGradGuard no_grad;
  Apart apart;
  broach::set_target(broach::DeviceKind::privateuse1, &apart);
  {
    auto f = broach::compile(
        [](const Tensor& x, const Tensor& y, const Tensor& index) {
          Tensor h = at::softmax(x * 2 + 1, -1), there = h.to(device());
          Tensor scale = x.sum().exp();  // a number of the host's, of more than numbers
          return broach::Tensors{there * y + 1,   h.cumsum(0) - 3, (y.sin() + 1).cpu() * h, y * scale, at::gelu(at::mm(h, h.t())),
                                 y.index({index})};
        },
        Options().pure());
    for (int64_t rows : {4, 4, 6, 9, 4}) {
      Tensor x = at::randn({rows, 5}) / 10, y = random_on(device(), {rows, 5}), index = at::randint(rows, {7}, at::kLong);
      const auto got = f(x, y, index);
      const Tensor h = at::softmax(x * 2 + 1, -1), z = y.cpu();
      const Tensor want[] = {(h * z + 1).to(device()),   h.cumsum(0) - 3,
                             (z.sin() + 1) * h,          (z * x.sum().exp()).to(device()),
                             at::gelu(at::mm(h, h.t())), z.index({index}).to(device())};
      for (size_t i = 0; i < got.size(); ++i) {
        INFO("result ", i);
        CHECK(close(got[i], want[i]));
      }
    }
    CHECK(f.explain().compiled_calls >= 2);
    CHECK(f.explain().eager_calls == 0);
    CHECK(apart.copies > 0);

    auto late = broach::compile([](const Tensor& y) { return at::zeros({3}).copy_(y * 2, /*non_blocking=*/true) + 1; },
                                Options().pure().fallback());
    for (int i = 0; i < 3; ++i) CHECK(late(random_on(device(), {3})).is_cpu());
    REQUIRE(!late.explain().eager_reasons.empty());
    CHECK(has(late.explain().eager_reasons[0], "non_blocking"));
  }
  broach::set_target(broach::DeviceKind::privateuse1, nullptr);
}

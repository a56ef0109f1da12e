// Programs as users of libtorch write them: state of their own, arguments of all kinds, training, layers that read values.
#include <broach/broach.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <sstream>
#include <thread>

#undef CHECK  // c10's, which ends the process
#include <doctest/doctest.h>

#include "errors.h"

namespace nn = torch::nn;
using broach::Options;
using torch::Tensor;

namespace {

bool close(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && torch::allclose(a, b, 1e-4, 1e-5);
}

// What a run prints as warnings.
class Warnings {
 public:
  Warnings() : before_(std::cerr.rdbuf(text_.rdbuf())) {}
  ~Warnings() { std::cerr.rdbuf(before_); }
  int count(const std::string& part) const {
    int n = 0;
    for (size_t at = text_.str().find(part); at != std::string::npos; at = text_.str().find(part, at + 1)) ++n;
    return n;
  }

 private:
  std::ostringstream text_;
  std::streambuf* before_;
};

struct NetImpl : nn::Module {
  NetImpl()
      : body(register_module("body", nn::Linear(8, 8))),
        drop(register_module("drop", nn::Dropout(0.5))),
        head(register_module("head", nn::Linear(8, 2))) {}
  Tensor forward(const Tensor& x) { return head(encode(x)); }
  Tensor encode(const Tensor& x) { return drop(torch::relu(body(x))); }
  nn::Linear body;
  nn::Dropout drop;
  nn::Linear head;
};
TORCH_MODULE(Net);

struct State {
  Tensor h, c;
};
struct Output {
  Tensor y;
  State state;
  int64_t steps;
  std::optional<Tensor> extra;
};
class Hidden {  // no aggregate
 public:
  Hidden() = default;
  explicit Hidden(Tensor t) : tensor(std::move(t)) {}
  Tensor tensor;
};
auto broach_fields(Hidden& h) { return std::tie(h.tensor); }

}  // namespace

// ---- what a program keeps ----

TEST_CASE("a tensor that the program keeps") {
  torch::NoGradGuard no_grad;
  Tensor last;
  auto keeps = [&](Tensor x) {
    last = x * 2;
    return last + 1;
  };
  auto strict = broach::compile(keeps, Options().pure());
  std::string error;
  for (int i = 0; i < 3 && error.empty(); ++i) {
    Tensor x = torch::full({4}, static_cast<float>(i));
    error = error_of([&] { strict(x); });
    CHECK(close(last, x * 2));
  }
  CHECK(has(error, "aten::mul"));
  CHECK(has(error, "pass it in again"));

  auto lenient = broach::compile(keeps, Options().pure().fallback());
  Warnings warnings;
  for (int i = 0; i < 5; ++i) {
    Tensor x = torch::full({4}, static_cast<float>(i));
    CHECK(close(lenient(x), x * 2 + 1));
    CHECK(close(last, x * 2));
  }
  CHECK(warnings.count("the program keeps a tensor") == 1);
}

TEST_CASE("an argument that the program keeps, and memory that it gives to another tensor") {
  torch::NoGradGuard no_grad;
  Tensor last, mean = torch::zeros({3});
  auto keeps = broach::compile([&](Tensor x) { return std::exchange(last, x).defined() ? x * 2 : x + 1; }, Options().pure().fallback());
  auto exchanges = broach::compile([&](Tensor x) { return mean.set_data(mean * 0.5 + x), x - mean; }, Options().pure().fallback());
  Warnings warnings;
  Tensor want_mean = torch::zeros({3});
  for (int i = 0; i < 12; ++i) {
    Tensor x = torch::full({3}, static_cast<float>(i));
    CHECK(close(keeps(x), i > 0 ? x * 2 : x + 1));
    CHECK(last.is_same(x));
    want_mean = want_mean * 0.5 + x;
    CHECK(close(exchanges(x), x - want_mean));
    CHECK(close(mean, want_mean));
  }
  CHECK(warnings.count("set_data") == 1);
  CHECK(warnings.count("keeps its argument 0") == 1);
}

TEST_CASE("caches of keys and values") {
  torch::NoGradGuard no_grad;
  Tensor cache = torch::zeros({0, 3}), want = cache, k = torch::zeros({8, 3}), want_k = k.clone();
  int pos = 0;
  auto grows = broach::compile([&](Tensor x) { return (cache = torch::cat({cache, x})).sum(0); }, Options().pure().fallback());
  auto writes = broach::compile([&](Tensor x) { return k[pos++] = x[0], k * 2; }, Options().pure().fallback());
  for (int i = 0; i < 6; ++i) {
    Tensor x = torch::randn({1, 3});
    want = torch::cat({want, x});
    CHECK(close(grows(x), want.sum(0)));
    want_k[i] = x[0];
    CHECK(close(writes(x), want_k * 2));
  }
  CHECK(pos == 6);
}

TEST_CASE("the same writes each time are compiled") {
  torch::NoGradGuard no_grad;
  Tensor total = torch::zeros({3}), want = torch::zeros({3});
  auto sums = broach::compile([&](Tensor x) { return total.add_(x), total * 2; }, Options().pure());
  for (int i = 0; i < 5; ++i) {
    Tensor x = torch::randn({3});
    want += x;
    CHECK(close(sums(x), want * 2));
  }
  CHECK(sums.explain().compiled_calls == 3);
  auto in_place = broach::compile([](Tensor x) { return x.add_(1) * 2; }, Options().pure());
  for (int n : {3, 3, 4, 5, 5, 6, 7}) CHECK(close(in_place(torch::ones({n})), torch::full({n}, 4.0)));
  CHECK(in_place.explain().eager_calls == 1);
  CHECK(in_place.explain().programs == 2);
}

TEST_CASE("a cache that is made once") {
  torch::NoGradGuard no_grad;
  Tensor mask;
  auto f = broach::compile(
      [&](Tensor x) {
        if (!mask.defined()) mask = torch::ones({4, 4}).tril();
        return x * mask;
      },
      Options().pure());
  for (int i = 0; i < 4; ++i) {
    Tensor x = torch::randn({4, 4});
    CHECK(close(f(x), x.tril()));
  }
  CHECK(f.explain().compiled_calls == 2);
}

TEST_CASE("a view of an argument that is kept, and results that are views") {
  torch::NoGradGuard no_grad;
  Tensor seen;
  auto f = broach::compile([&](Tensor x) { return seen = x.view(-1), x + 1; }, Options().pure().fallback());
  auto view = broach::compile([](Tensor x) { return (x * 2).view(-1).slice(0, 1); }, Options().pure());
  for (int i = 0; i < 4; ++i) {
    Tensor x = torch::randn({2, 2});
    f(x);
    CHECK(seen.is_alias_of(x));
    CHECK(close(view(x), (x * 2).view(-1).slice(0, 1)));
  }
  CHECK(view.explain().compiled_calls == 3);
}

// ---- training ----

TEST_CASE("a training step runs eagerly, says so once and is not captured again") {
  auto train = [](bool compiled, bool outer_no_grad, std::vector<float>& losses) {
    torch::manual_seed(3);
    nn::Sequential model(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 1));
    torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
    Tensor x = torch::randn({16, 4}), y = torch::randn({16, 1});
    auto step = [&](Tensor a, Tensor b) {
      torch::AutoGradMode on(true);
      optimizer.zero_grad();
      Tensor loss = torch::mse_loss(model->forward(a), b);
      loss.backward();
      optimizer.step();
      return loss.detach();
    };
    torch::AutoGradMode mode(!outer_no_grad);
    if (!compiled) {
      for (int i = 0; i < 6; ++i) losses.push_back(step(x, y).item<float>());
      return broach::Explanation();
    }
    auto fast = broach::compile(step, Options().pure().fallback());
    for (int i = 0; i < 6; ++i) losses.push_back(fast(x, y).item<float>());
    return fast.explain();
  };
  for (bool no_grad : {false, true}) {
    std::vector<float> want, got;
    train(false, no_grad, want);
    Warnings warnings;
    auto e = train(true, no_grad, got);
    CHECK(got == want);
    CHECK(e.compiled_calls == 0);
    CHECK(e.programs == 0);
    CHECK(warnings.count("warning: runs eagerly") == 1);
  }
}

TEST_CASE("the type of elements that nobody names is a mode of calls") {
  torch::NoGradGuard no_grad;
  auto compiled = broach::compile([](Tensor t) { return t.to(torch::kInt) * 0.5 + torch::ones({2}); }, Options().pure());
  const Tensor x = torch::tensor({3.F, 4.F});
  for (int i = 0; i < 3; ++i) CHECK((compiled(x).scalar_type() == torch::kFloat));
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  for (int i = 0; i < 3; ++i) CHECK((compiled(x).scalar_type() == torch::kDouble));
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  for (int i = 0; i < 3; ++i) CHECK((compiled(x).scalar_type() == torch::kFloat));
}

TEST_CASE("gradients that cannot be compiled are told once, and NoGradGuard inside helps") {
  nn::Linear linear(4, 4);
  Tensor x = torch::randn({2, 4});
  int hooks = 0;
  auto hooked = broach::compile(
      [&](Tensor t) {
        Tensor h = linear(t);
        if (h.requires_grad()) h.register_hook([&](Tensor g) { return ++hooks, g; });
        return h * 2;
      },
      Options().pure());
  {
    Warnings warnings;
    for (int i = 0; i < 3; ++i) hooked(x).sum().backward();
    CHECK(warnings.count("NoGradGuard") == 1);
  }
  CHECK(hooks == 3);
  auto inside = broach::compile(
      [&](Tensor t) {
        torch::NoGradGuard no_grad;
        return linear(t);
      },
      Options().pure());
  for (int i = 0; i < 3; ++i) CHECK(close(inside(x), linear(x)));
  CHECK(inside.explain().compiled_calls == 2);
}

// ---- sizes that host code reads ----

TEST_CASE("sizes read as plain numbers") {
  torch::NoGradGuard no_grad;
  auto plain = broach::compile([](Tensor x) { return x.view({x.size(0), -1}) * 2; }, Options().pure());
  auto open = broach::compile([](Tensor x) { return x.view_symint({x.sym_size(0), -1}) * 2; }, Options().pure());
  Warnings warnings;
  for (int n = 2; n < 42; ++n) {
    Tensor x = torch::randn({n, 2, 3});
    CHECK(close(plain(x), x.view({n, -1}) * 2));
    CHECK(close(open(x), x.view({n, -1}) * 2));
  }
  CHECK(open.explain().programs == 2);
  auto e = plain.explain();
  CHECK(e.programs <= 5);
  REQUIRE(!e.fixed_sizes.empty());
  CHECK(has(e.fixed_sizes[0], "input 0's size 0 was read as a plain number by host code"));
  CHECK(has(e.str(), "sym_size"));
  CHECK(warnings.count("warning: runs eagerly") == 1);
  for (int i = 0; i < 4; ++i) plain(torch::randn({41, 2, 3}));  // what comes again is compiled after all
  CHECK(plain.explain().compiled_calls > e.compiled_calls);
}

// ---- libtorch's layers ----

TEST_CASE("attention and transformers") {
  torch::NoGradGuard no_grad;
  nn::MultiheadAttention attention(16, 4);
  auto fast = broach::compile(attention);
  nn::TransformerEncoder encoder(nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32)), 2);
  nn::TransformerDecoder decoder(
      nn::TransformerDecoder(nn::TransformerDecoderLayer(nn::TransformerDecoderLayerOptions(16, 2).dim_feedforward(32)), 1));
  encoder->eval(), decoder->eval(), attention->eval();
  auto fast_encoder = broach::compile(encoder);
  auto fast_decoder = broach::compile(decoder);
  for (int i = 0; i < 3; ++i) {
    Tensor x = torch::randn({5, 2, 16}), y = torch::randn({7, 2, 16}), z = torch::randn({5, 2, 16});
    auto [out, weights] = fast(x, x, x);
    auto [want, want_weights] = attention->forward(x, x, x);
    CHECK(close(out, want));
    CHECK(close(weights, want_weights));
    CHECK(close(std::get<0>(fast(x, y, y)), std::get<0>(attention->forward(x, y, y))));
    CHECK(close(std::get<0>(fast(x, z, z)), std::get<0>(attention->forward(x, z, z))));
    CHECK(close(std::get<0>(fast(x, x.clone(), x)), std::get<0>(attention->forward(x, x, x))));
    CHECK(close(fast_encoder(x), encoder->forward(x)));
    CHECK(close(fast_decoder(x, y), decoder->forward(x, y)));
    CHECK(close(fast_decoder(x, z), decoder->forward(x, z)));
  }
  CHECK(fast_encoder.explain().compiled_calls == 2);
  CHECK(fast_encoder.explain().eager_calls == 0);
  CHECK(fast.explain().eager_calls == 0);
  for (int n : {6, 9, 11}) CHECK(close(fast_encoder(torch::ones({n, 3, 16})), encoder->forward(torch::ones({n, 3, 16}))));
  Tensor nan = torch::full({5, 2, 16}, NAN);
  CHECK(fast_encoder(nan).isnan().all().item<bool>());
  nn::TransformerEncoderLayer own(nn::TransformerEncoderLayerOptions(16, 2).activation([](const Tensor& t) { return t.tanh(); }));
  CHECK(has(error_of([&] { broach::compile(own); }), "TransformerEncoderLayer"));
}

TEST_CASE("an LSTM takes its state") {
  torch::NoGradGuard no_grad;
  nn::LSTM lstm(nn::LSTMOptions(4, 6));
  auto fast = broach::compile(lstm);
  Tensor x = torch::randn({3, 2, 4});
  auto state = std::make_tuple(torch::randn({1, 2, 6}), torch::randn({1, 2, 6}));
  for (int i = 0; i < 3; ++i) {
    auto [y, after] = fast(x, state);
    auto [want, want_after] = lstm->forward(x, state);
    CHECK(close(y, want));
    CHECK(close(std::get<1>(after), std::get<1>(want_after)));
    state = after;
    CHECK(close(std::get<0>(fast(x)), std::get<0>(lstm->forward(x))));
  }
  CHECK(fast.explain().compiled_calls == 4);
}

// ---- arguments and results ----

TEST_CASE("numbers, optionals, lists and maps") {
  torch::NoGradGuard no_grad;
  Tensor x = torch::randn({3, 4}), y = torch::randn({3, 4});
  auto mix = broach::compile(
      [](Tensor a, int64_t dim, double scale, bool relu, const std::string& how) {
        Tensor r = (how == "sum" ? a.sum(dim) : a.mean(dim)) * scale;
        return relu ? r.relu() : r;
      },
      Options().pure());
  auto optional = broach::compile([](Tensor a, std::optional<Tensor> b) { return b ? a + *b : a * 2; }, Options().pure());
  auto list =
      broach::compile([](at::TensorList l, at::IntArrayRef sizes) { return torch::stack(l).sum(0).reshape(sizes); }, Options().pure());
  auto map =
      broach::compile([](const std::map<std::string, Tensor>& m) { return std::map<std::string, Tensor>{{"sum", m.at("a") + m.at("b")}}; },
                      Options().pure());
  auto dict = broach::compile([](const c10::Dict<std::string, Tensor>& m) { return m.at("a") * 3; }, Options().pure());
  auto nested =
      broach::compile([](std::pair<Tensor, std::array<Tensor, 2>> p,
                         std::vector<std::tuple<Tensor, int>> v) { return p.first + p.second[1] * std::get<1>(v[0]) + std::get<0>(v[1]); },
                      Options().pure());
  c10::Dict<std::string, Tensor> d;
  d.insert("a", x);
  for (int i = 0; i < 3; ++i) {
    CHECK(close(mix(x, 0, 2.5, true, "sum"), (x.sum(0) * 2.5).relu()));
    CHECK(close(mix(x, 1, 2.5, false, "mean"), x.mean(1) * 2.5));
    CHECK(close(optional(x, y), x + y));
    CHECK(close(optional(x, std::nullopt), x * 2));
    CHECK(close(list({x, y}, {12}), (x + y).reshape({12})));
    CHECK(close(list({x, y, y}, {6, 2}), (x + y + y).reshape({6, 2})));
    CHECK(close(map({{"a", x}, {"b", y}}).at("sum"), x + y));
    CHECK(close(dict(d), x * 3));
    CHECK(close(nested({x, {y, y}}, {{x, 2}, {y, 3}}), x + y * 2 + y));
  }
  CHECK(mix.explain().compiled_calls == 4);
}

TEST_CASE("numbers that change become symbols") {
  torch::NoGradGuard no_grad;
  auto f = broach::compile([](Tensor a, at::Scalar s) { return a * s + 1; }, Options().pure());
  auto g = broach::compile([](Tensor a, c10::SymInt n) { return a.expand_symint({n, 4}) + 1; }, Options().pure());
  for (int i = 2; i < 12; ++i) {
    Tensor x = torch::randn({4});
    CHECK(close(f(x, 0.5 * i), x * (0.5 * i) + 1));
    CHECK(close(g(x, i), x.expand({i, 4}) + 1));
  }
  CHECK(f.explain().programs == 2);
  CHECK(g.explain().programs == 2);
}

TEST_CASE("structs, nothing, numbers and absent values as results") {
  torch::NoGradGuard no_grad;
  Tensor x = torch::randn({3, 4});
  auto f = broach::compile(
      [](Tensor a, const State& s) {
        return Output{a + s.h, {a * 2, s.c - 1}, a.size(0), a.size(0) > 2 ? std::optional(a.exp()) : std::nullopt};
      },
      Options().pure());
  auto hidden = broach::compile([](const Hidden& h) { return Hidden(h.tensor + 1); }, Options().pure());
  auto nothing = broach::compile([](Tensor a) { a.add_(1); }, Options().pure());
  auto bare =
      broach::compile([](Tensor a) -> std::optional<Tensor> { return a.dim() > 5 ? std::optional(a) : std::nullopt; }, Options().pure());
  for (int i = 0; i < 3; ++i) {
    Output o = f(x, {x, x});
    CHECK(close(o.y, x + x));
    CHECK(close(o.state.c, x - 1));
    CHECK(o.steps == 3);
    CHECK(close(o.extra.value(), x.exp()));
    CHECK(close(hidden(Hidden(x)).tensor, x + 1));
    Tensor t = torch::zeros({2});
    nothing(t);
    CHECK(close(t, torch::ones({2})));
    CHECK(!bare(x).has_value());
  }
  Tensor short_ = torch::ones({2, 4});
  CHECK(!f(short_, {short_, short_}).extra.has_value());
}

TEST_CASE("an argument that the program makes another tensor") {
  torch::NoGradGuard no_grad;
  auto f = broach::compile([](Tensor& a) { return a = a * 2; }, Options().pure());
  CHECK(has(error_of([&] { f(torch::ones({2})); }), "another tensor"));
}

// ---- programs of all kinds ----

TEST_CASE("modules on the stack, owned otherwise, and without a type") {
  torch::NoGradGuard no_grad;
  Tensor x = torch::randn({2, 8});
  NetImpl net;
  net.eval();
  auto by_reference = broach::compile(net, Options().pure());
  auto owned = broach::compile(std::make_unique<nn::LinearImpl>(8, 3));
  nn::Linear linear(8, 3);
  auto any = broach::compile(nn::AnyModule(linear));
  using std::placeholders::_1;
  auto bound = broach::compile(std::bind([](const Tensor& a, const Tensor& b) { return a + b; }, _1, x), Options().pure());
  auto generic = broach::compile([](const auto& a, auto... more) { return (a + ... + more); }, Options().pure());
  for (int i = 0; i < 3; ++i) {
    CHECK(close(by_reference(x), net.forward(x)));
    CHECK(close(owned(x), owned->forward(x)));
    CHECK(close(any(x), linear(x)));
    CHECK(close(bound(x), x + x));
    CHECK(close(generic(x, x, x), x * 3));
    CHECK(close(generic(x, 2.0), x + 2));
  }
}

TEST_CASE("a compiled module stands for the module") {
  torch::NoGradGuard no_grad;
  Net net;
  auto fast = broach::compile(net, Options().pure());
  Tensor x = torch::randn({2, 8});
  fast.eval();
  CHECK(!net->is_training());
  CHECK(close(fast(x), net->forward(x)));
  CHECK(fast.parameters().size() == 4);
  CHECK(fast.named_parameters().contains("body.weight"));
  CHECK(fast.buffers().empty());
  CHECK(close(fast->encode(x), net->encode(x)));
  fast.to(torch::kDouble);
  CHECK(close(fast.forward(x.to(torch::kDouble)), net->forward(x.to(torch::kDouble))));
  std::stringstream file;
  torch::serialize::OutputArchive archive;
  fast.module()->save(archive);
  nn::Sequential around{nn::Functional([fast](Tensor t) { return fast(t); })};
  CHECK(close(around->forward(x.to(torch::kDouble)), net->forward(x.to(torch::kDouble))));
}

TEST_CASE("a method, and a function that names its modules") {
  torch::NoGradGuard no_grad;
  NetImpl net;
  Net other;
  net.eval(), other->eval();
  Tensor x = torch::randn({64, 8});
  auto f = broach::compile([&](Tensor t) { return net.encode(t) + other->encode(t); }, broach::uses(net, other), Options().pure());
  auto agree = [&] { return close(f(x), net.encode(x) + other->encode(x)); };
  for (int i = 0; i < 3; ++i) CHECK(agree());
  net.train();
  CHECK(!agree());  // dropped at random
  net.eval();
  CHECK(agree());
  net.body = net.replace_module("body", nn::Linear(8, 8));
  for (int i = 0; i < 2; ++i) CHECK(agree());
  other->body->weight = other->register_parameter("unused", torch::randn({8, 8}));
  for (int i = 0; i < 2; ++i) CHECK(agree());
}

// ---- errors, verification, threads ----

TEST_CASE("errors name the way out that fits them") {
  torch::NoGradGuard no_grad;
  auto f = broach::compile([](Tensor x) { return x * 2; }, Options().pure());
  // Calls with tensors of kinds that are not compiled run eagerly, and say what would be.
  CHECK(torch::equal(f(torch::eye(3).to_sparse()).to_dense(), 2 * torch::eye(3)));
  CHECK(f(torch::ones({2}, torch::kMeta)).is_meta());
  CHECK(torch::equal(f(torch::conj(torch::ones({2}, torch::kComplexFloat))), 2 * torch::ones({2}, torch::kComplexFloat)));
  CHECK(has(f.explain().str(), "is given a tensor of a kind"));
  nn::Embedding embedding(4, 2);
  auto look_up = broach::compile(embedding);
  look_up(torch::tensor({1, 2}));
  CHECK_THROWS_AS(look_up(torch::tensor({1, 7})), c10::IndexError);
  CHECK_THROWS_AS(embedding(torch::tensor({1, 7})), c10::IndexError);
}

TEST_CASE("sizes and ways that depend on data") {
  torch::NoGradGuard no_grad;
  auto h = broach::compile([](Tensor x) { return x.nonzero() * 2; }, Options().pure());
  auto branch = broach::compile([](Tensor x) { return (x.sum() > 0).item<bool>() ? x + 1 : x - 1; }, Options().pure());
  for (int n : {3, 4, 5, 6}) {
    Tensor y = torch::randn({n, 4});
    CHECK(close(h(y), y.nonzero() * 2));
    for (const Tensor& t : {y, y.abs(), -y.abs()}) CHECK(close(branch(t), t.sum().item<float>() > 0 ? t + 1 : t - 1));
  }
}

TEST_CASE("verify") {
  torch::NoGradGuard no_grad;
  int runs = 0;
  auto good = broach::compile([&](Tensor x) { return ++runs, x.add_(1) * 2; }, Options().pure().verify(2));
  Tensor x = torch::zeros({3});
  for (int i = 1; i <= 7; ++i) CHECK(close(good(x), torch::full({3}, 2.0 * i)));
  CHECK(good.explain().verified_calls == 2);
  CHECK(runs == 4);  // two to record, two to compare

  double counter = 0;
  auto bad = broach::compile([&](Tensor t) { return t + ++counter; }, Options().pure().verify(3));
  Warnings warnings;
  for (int i = 1; i <= 5; ++i) CHECK(close(bad(torch::zeros({3})), torch::full({3}, static_cast<float>(i))));
  CHECK(warnings.count("differs from eager") == 1);
  CHECK(has(bad.explain().str(), "differs from eager"));
}

TEST_CASE("threads that call while one captures") {
  Net net;
  net->eval();
  auto fast = broach::compile(net, Options().pure());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      torch::NoGradGuard no_grad;
      for (int i = 0; i < 20; ++i) {
        Tensor x = torch::full({2 + (i + t) % 5, 8}, static_cast<float>(i - t));
        if (!close(fast(x), net->forward(x))) ++wrong;
      }
    });
  for (auto& t : threads) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("programs: the gradients of weights and arguments, which are other tensors in every step") {
  nn::Linear model(4, 3);
  auto norm = [&] {
    Tensor sum = torch::zeros({});
    for (const Tensor& p : model->parameters()) sum = sum + p.grad().square().sum();
    return sum.sqrt();
  };
  auto twice = [](const Tensor& w) { return w.grad() * 2; };
  auto fast = broach::compile(norm, broach::uses(model), Options().pure());
  auto fast_twice = broach::compile(twice, Options().pure());
  for (int step = 0; step < 7; ++step) {
    model->zero_grad(step % 3 != 1);
    (model(torch::randn({2, 4})) * (step + 1)).square().sum().backward();
    torch::NoGradGuard no_grad;
    CHECK(close(fast(), norm()));
    Tensor w = torch::ones({3}).requires_grad_();
    w.mutable_grad() = torch::full({3}, step + 1.f);
    CHECK(close(fast_twice(w), twice(w)));
  }
}

TEST_CASE("programs: writes that go by a number or a size which is another one in every call") {
  torch::NoGradGuard no_grad;
  auto decode = [](const Tensor& x, std::vector<Tensor>& cache, c10::SymInt at) {
    cache[0].narrow_symint(0, at, 1).copy_(x);
    return cache[0].narrow_symint(0, 0, at + 1).sum(0);
  };
  auto descend = [](Tensor& x, at::Scalar rate) { return x.sub_(x * rate), x.norm(); };
  auto grow = [](Tensor& x) { return x.add_(1), x * 2; };
  auto fast_decode = broach::compile(decode, Options().pure());
  auto fast_descend = broach::compile(descend, Options().pure());
  auto fast_grow = broach::compile(grow, Options().pure());
  std::vector<Tensor> cache{torch::zeros({64, 4})}, twin{torch::zeros({64, 4})};
  Tensor w = torch::randn({5}), v = w.clone();
  for (int i = 0; i < 40; ++i) {
    const Tensor x = torch::randn({1, 4}), y = torch::randn({i + 2}), z = y.clone();
    CHECK(close(fast_decode(x, cache, c10::SymInt(i)), decode(x, twin, c10::SymInt(i))));
    CHECK(close(fast_descend(w, 0.1 / (i + 1)), descend(v, 0.1 / (i + 1))));
    Tensor mine = y, theirs = z;
    CHECK(close(fast_grow(mine), grow(theirs)));
    CHECK((close(cache[0], twin[0]) && close(w, v) && close(y, z)));
  }
  CHECK(fast_decode.explain().compiled_calls >= 30);
  CHECK(fast_descend.explain().compiled_calls >= 30);
  CHECK(fast_grow.explain().compiled_calls >= 30);
}

TEST_CASE("programs: writes that go by a counter of the host's are refused, though calls have other sizes each") {
  torch::NoGradGuard no_grad;
  int64_t calls = 0;
  Tensor cache = torch::zeros({64});
  auto program = [&](const Tensor& x) { return cache[calls++].copy_(x.sum()), cache.sum(); };
  auto fast = broach::compile(program, Options().pure());
  const std::string said = error_of([&] {
    for (const int n : {3, 7, 4, 9, 5, 2, 11, 6, 13, 8, 20, 12, 15, 30, 14, 40, 17, 50}) fast(torch::ones({n}));
  });
  CHECK(has(said, "writes to tensors"));
  CHECK(calls > 3);
}

TEST_CASE("programs: writes beside arguments that begin at another place of their memory in every call") {
  torch::NoGradGuard no_grad;
  auto mine = std::make_shared<nn::BatchNorm1dImpl>(4), theirs = std::make_shared<nn::BatchNorm1dImpl>(4);
  auto fast = broach::compile([mine](const Tensor& x) { return mine->forward(x).relu(); }, Options().pure());
  const Tensor data = torch::randn({40, 4});
  for (const Tensor& x : data.split(5)) CHECK(close(fast(x), theirs->forward(x).relu()));
  CHECK(close(mine->running_mean, theirs->running_mean));
  auto adds = broach::compile([](Tensor sum, const Tensor& x) { sum.select(0, 1).add_(x[2]); }, Options().pure());
  const Tensor sums = torch::zeros({4, 3});
  for (int i = 0; i < 8; ++i) adds(sums.slice(0, i % 2), data[i]);
  for (int i = 0; i < 2; ++i) CHECK(close(sums[i + 1], (data.select(1, 2).slice(0, i, 8, 2)).sum().expand({3})));
}

TEST_CASE("programs: numbers that are written by an index") {
  torch::NoGradGuard no_grad;
  using torch::indexing::Slice;
  auto program = [](const Tensor& x) {
    Tensor y = x.clone();
    y.index_put_({x < 0}, 0), y.index_put_({Slice(0, 2)}, 1.5), y.index_put_({"...", 1}, -1), y.index_put_({torch::tensor({2, 3})}, 7);
    return y;
  };
  auto fast = broach::compile(program, Options().pure());
  for (int i = 0; i < 5; ++i) {
    const Tensor x = torch::randn({5 + i % 3, 4});
    CHECK(torch::equal(fast(x), program(x)));
  }
  Tensor held = torch::full({}, 2.0);  // which is no number of the program's own
  auto puts = broach::compile([held](const Tensor& x) { return x.clone().index_put_({x < 0}, held); }, Options().pure());
  for (int i = 0; i < 5; ++i) {
    held.fill_(i);
    const Tensor x = torch::randn({6});
    CHECK(torch::equal(puts(x), x.clone().index_put_({x < 0}, held)));
  }
}

TEST_CASE("programs: what an argument is a view of, which is another tensor in every call") {
  torch::NoGradGuard no_grad;
  auto program = [](const Tensor& x) { return Tensor(x._base()) * 2 + x.sum(); };
  auto fast = broach::compile(program, Options().pure());
  for (int call = 0; call < 5; ++call) {
    const Tensor whole = torch::randn({3, 4});
    for (const Tensor& x : {whole[1], whole[2], whole.slice(1, 1, 3)}) CHECK(close(fast(x), program(x)));
  }
}

namespace {

struct Normed : nn::Module {
  Normed() { register_module("linear", linear), register_module("norm", norm); }
  Tensor forward(const Tensor& x) { return norm(linear(x)); }
  nn::Linear linear{3, 3};
  nn::BatchNorm1d norm{3};
};

// Calls of a program that writes to its argument, beside its own.
template <class F>
void check_writes(const F& program, const std::vector<Tensor>& arguments) {
  auto fast = broach::compile(program, Options().pure());
  for (const Tensor& x : arguments) {
    const Tensor mine = x.clone(), theirs = x.clone(), want = program(theirs);
    CHECK(close(fast(mine), want));
    CHECK(close(mine, theirs));
  }
}

}  // namespace

TEST_CASE("programs: writes by calls whose sizes, types and values differ from the first on") {
  auto ours = std::make_shared<Normed>(), theirs = std::make_shared<Normed>();
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < ours->parameters().size(); ++i) theirs->parameters()[i].copy_(ours->parameters()[i]);
  auto fast = broach::compile(ours, Options().pure());
  for (int64_t batch : {3, 4, 5, 6, 3, 7, 4, 5}) {
    const Tensor x = torch::randn({batch, 3});
    CHECK(close(fast(x), theirs->forward(x)));
    CHECK(close(ours->norm->running_mean, theirs->norm->running_mean));
  }
  auto ones = [](int64_t n) { return torch::ones({n}); };
  check_writes([](const Tensor& x) { return x.add_(1), x.sum(0); }, {ones(3), ones(4), ones(3), ones(4), ones(5), ones(3)});
  check_writes([](const Tensor& x) { return x.mul_(2), x + 1; },
               {ones(3), ones(3).to(torch::kDouble), ones(3), ones(3).to(torch::kDouble)});
  check_writes([](const Tensor& x) { return x.index_put_({x > 1}, torch::tensor(0.5f)), x * 2; },
               {torch::arange(4.f), torch::arange(4.f) - 1, torch::arange(4.f) + 2, torch::arange(4.f)});
  check_writes([](const Tensor& x) { return (x.sum() > 0).item<bool>() ? x.add_(1) * 2 : x.sub_(1) * 3; },
               {ones(2), -ones(2), ones(2), -ones(2), ones(2)});
}

TEST_CASE("programs: random numbers beside another thread that draws its own") {
  torch::NoGradGuard no_grad;
  std::atomic<bool> ends{false};
  std::thread other([&] {
    while (!ends) torch::rand({8});
  });
  auto f = broach::compile([](const Tensor& x) { return torch::dropout(x, 0.5, true); }, Options().pure());
  for (int call = 0; call < 7; ++call) {
    const Tensor y = f(torch::ones({100}));
    CHECK(torch::logical_or(y == 0, y == 2).all().item<bool>());
  }
  ends = true;
  other.join();
}

TEST_CASE("programs: a tensor that is returned twice is one") {
  auto program = [](const Tensor& x) {
    Tensor y = x * 2, view = y.t();
    return std::make_tuple(view, view, y, y, x, x);
  };
  auto compiled = broach::compile(program, Options().pure());
  for (int i = 0; i < 3; ++i) {
    const Tensor x = torch::ones({2, 3}) * i;
    auto [a, b, c, d, e, f] = compiled(x);
    CHECK(a.is_same(b));
    CHECK(c.is_same(d));
    CHECK((e.is_same(f) && e.is_same(x)));
    CHECK(!a.is_same(c));
    CHECK(torch::equal(a, (x * 2).t()));
    CHECK(a.data_ptr() == c.data_ptr());
  }
}

TEST_CASE("programs: numbers that need all 64 bits") {
  auto compiled = broach::compile([](const Tensor& x, const at::Scalar& s) { return x + s; }, Options().pure());
  const Tensor x = torch::zeros({2}, torch::kLong);
  for (int64_t n : {-(int64_t{1} << 62), -(int64_t{1} << 62) - 1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
                    int64_t{-3}})
    for (int i = 0; i < 2; ++i) CHECK(compiled(x, n)[1].item<int64_t>() == n);
}

TEST_CASE("programs: what leaves a dictionary of modules is noticed") {
  torch::nn::ModuleDict layers;
  layers->update({{"a", torch::nn::Softmax(0).ptr()}, {"b", torch::nn::ReLU().ptr()}});
  auto program = [layers](Tensor x) mutable {
    for (const auto& key : layers->keys())
      x = key == "a" ? layers[key]->as<torch::nn::Softmax>()->forward(x) : layers[key]->as<torch::nn::ReLU>()->forward(x);
    return x;
  };
  auto compiled = broach::compile(program, broach::uses(layers), Options().pure());
  const Tensor x = torch::ones({2});
  for (int i = 0; i < 3; ++i) CHECK(torch::equal(compiled(x), program(x)));
  layers->pop("a");
  for (int i = 0; i < 3; ++i) CHECK(torch::equal(compiled(x), x));
  layers->clear();
  for (int i = 0; i < 3; ++i) CHECK(torch::equal(compiled(x), x));
}

TEST_CASE("programs: a module that writes its statistics is called with gradients, without, and with again") {
  for (int way = 0; way < 3; ++way) {
    torch::nn::Sequential module(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::ReLU());
    torch::nn::Sequential eager = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(module->clone());
    auto compiled = broach::compile(module);
    for (int i = 0; i < 8; ++i) {
      torch::AutoGradMode mode(way == 0 ? i > 0 : way == 1 ? i == 0 : i % 3 != 1);
      const Tensor x = torch::randn({3, 6});
      CHECK(close(compiled(x), eager->forward(x)));
      CHECK(close(module->named_buffers()["1.running_mean"], eager->named_buffers()["1.running_mean"]));
    }
    CHECK(compiled.explain().compiled_calls > 0);
    CHECK(compiled.explain().eager_reasons.empty());
  }
}

TEST_CASE("programs: gradients of gradients are refused where the modules have changed since the call") {
  torch::nn::Sequential module(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Tanh());
  auto compiled = broach::compile(module);
  const Tensor x = torch::randn({3, 6}).requires_grad_();
  Tensor out;
  for (int i = 0; i < 3; ++i) out = compiled(x);
  CHECK(torch::autograd::grad({out.sum()}, {x}, {}, true, true)[0].requires_grad());
  module->eval();
  CHECK(torch::autograd::grad({out.sum()}, {x}, {}, true, false)[0].defined());
  CHECK_THROWS_WITH_AS(torch::autograd::grad({out.sum()}, {x}, {}, true, true), doctest::Contains("have changed since the call"),
                       std::exception);
  module->train();
  CHECK(torch::autograd::grad({out.sum()}, {x}, {}, true, true)[0].requires_grad());
}

TEST_CASE("programs: views of what needs gradients, with gradients off, are refused by their name") {
  auto compiled = broach::compile([](const Tensor& x) { return x.view({-1}); }, Options().pure());
  torch::NoGradGuard no_grad;
  const Tensor x = torch::ones({2, 2}).set_requires_grad(true);
  CHECK_THROWS_WITH_AS(compiled(x), doctest::Contains("a view of a tensor that needs them. Return a detach() of it. Options()"),
                       broach::Error);
}

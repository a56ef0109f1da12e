// What a call gives back to the caller's variables, and what becomes of the objects of the API themselves.
#include <ATen/ATen.h>
#include <broach/broach.h>
#include <c10/core/GradMode.h>

#include <map>
#include <stdexcept>
#include <thread>
#include <unordered_map>

#undef CHECK  // c10's, which ends the process
#include <doctest/doctest.h>

#include "errors.h"

using at::Tensor;
using broach::Options;
using broach::Tensors;

// A compiled call has no access to the caller's variables: what eager would put there must not be lost without a word.
TEST_CASE("arguments by reference that the program makes other values") {
  c10::NoGradGuard no_grad;
  const Options pure = Options().pure();
  const Tensor x = at::ones({3});
  auto refused = [](const auto& call) { return has(error_of(call), "argument given by reference"); };
  auto longer = broach::compile([](Tensors& list) { return list.push_back(list[0] + 1), list[0] * 2; }, pure);
  auto other = broach::compile([](Tensors& list) { return list[0] = list[0] + 1, list[0] * 2; }, pure);
  auto counted = broach::compile([](const Tensor& t, int64_t& n) { return t * ++n; }, pure);
  auto symbol = broach::compile([](const Tensor& t, at::Scalar& s) { return s = 3, t * s; }, pure);
  auto named = broach::compile([](const Tensor& t, std::map<std::string, Tensor>& m) { return m["y"] = t * 2, t + 1; }, pure);
  auto generic = broach::compile([](auto& t) { return t = t + 1, t * 2; }, pure);
  for (int i = 0; i < 2; ++i) {
    CHECK(refused([&] { longer({x}); }));
    CHECK(refused([&] { other({x}); }));
    CHECK(refused([&] { counted(x, 1); }));
    CHECK(refused([&] { symbol(x, 2.5); }));
    CHECK(refused([&] { named(x, {}); }));
    CHECK(refused([&] { generic(x); }));
  }

  // Read, written to, and taken away.
  auto reads = broach::compile(
      [](Tensors& list, std::unordered_map<std::string, Tensor>& m, at::Scalar& s) { return list[0] * s + m.at("a"); }, pure);
  auto writes = broach::compile([](Tensors& list) { return list[0].add_(1) * 2; }, pure);
  auto takes = broach::compile([](Tensors&& list) { return Tensors(std::move(list))[0] * 2; }, pure);
  auto copies = broach::compile([](Tensors list) { return list.push_back(list[0] * 2), list[1]; }, pure);
  const Tensor y = at::zeros({3});
  for (int i = 1; i < 4; ++i) {
    CHECK(at::equal(reads({x}, {{"a", x}, {"b", y}}, 0.5 * i), x * (0.5 * i) + x));
    CHECK(at::equal(writes({y}), at::full({3}, 2.0 * i)));
    CHECK(at::equal(y, at::full({3}, double(i))));
    CHECK(at::equal(takes({x}), x * 2));
    CHECK(at::equal(copies({x}), x * 2));
  }
}

TEST_CASE("views of lists and texts, alone and within other values, as arguments and as results") {
  c10::NoGradGuard no_grad;
  const Options pure = Options().pure();
  const std::vector<int64_t> front{0, 2}, back{1, 2};
  const Tensor x = at::ones({7, 3, 5, 2, 1, 4});
  const std::string text(100, 't');
  auto maybe = broach::compile([](Tensor t, std::optional<at::IntArrayRef> d) { return d ? t.sum(*d) : t.sum(); }, pure);
  auto both = broach::compile(
      [](Tensor t, std::pair<at::IntArrayRef, at::IntArrayRef> d) {
        const std::vector<int64_t> others(2, 9);  // where a view that does not last would look
        return t.sum(d.first).sum() + t.sum(d.second).sum();
      },
      pure);
  auto three = broach::compile([](Tensor t, std::tuple<std::string_view, at::TensorList> v) { return std::get<1>(v)[0] * t; }, pure);
  auto generic = broach::compile([](auto t, std::optional<at::TensorList> l) { return l ? t + (*l)[0] : t; }, pure);
  auto sizes = broach::compile([](Tensor t) -> at::IntArrayRef { return t.sizes(); }, pure);
  auto name = broach::compile([](Tensor t, std::string_view s) -> std::string_view { return s; }, pure);
  for (int i = 0; i < 4; ++i) {
    CHECK(at::equal(maybe(x, at::IntArrayRef(front)), x.sum(front)));
    CHECK(at::equal(maybe(x, std::nullopt), x.sum()));
    CHECK(at::equal(both(x, {front, back}), x.sum() * 2));
    CHECK(at::equal(three(x, {text, at::TensorList(x)}), x));
    CHECK(at::equal(generic(x, std::optional<at::TensorList>(x)), x + x));
    CHECK(sizes(x) == x.sizes());
    CHECK(name(x, text) == text);
  }
}

TEST_CASE("equal maps are one version, however they came to be") {
  c10::NoGradGuard no_grad;
  using Map = std::unordered_map<std::string, Tensor>;
  auto f = broach::compile([](const Map& m) { return Map{{"sum", m.at("a") + m.at("b")}, {"c", m.at("c") * 2}}; }, Options().pure());
  for (size_t buckets : {1, 7, 100, 1000}) {
    Map m(buckets);
    for (const char* key : {"a", "b", "c"}) m[key] = at::full({3}, double(key[0]));
    Map out = f(m);
    CHECK(at::equal(out.at("sum"), m.at("a") + m.at("b")));
    CHECK(at::equal(out.at("c"), m.at("c") * 2));
  }
  CHECK(f.explain().programs == 1);
  CHECK(f.explain().compiled_calls == 3);
}

TEST_CASE("exceptions of the program have their type") {
  c10::NoGradGuard no_grad;
  struct Mine {
    int code;
  };
  auto f = broach::compile(
      [](const Tensor& x) {
        if (x.size(0) == 3) throw std::out_of_range("three");
        if (x.size(0) == 5) throw Mine{5};
        return x * 2;
      },
      Options().pure());
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS_WITH_AS(f(at::ones({3})), "three", std::out_of_range);
    CHECK_THROWS_AS(f(at::ones({5})), Mine);
    CHECK(at::equal(f(at::ones({4})), at::full({4}, 2.0)));
  }
  // An index among the data is eager's error.
  auto g = broach::compile([](const Tensor& x, const Tensor& i) { return x.index_select(0, i) * 2; }, Options().pure());
  const Tensor x = at::ones({4}), good = at::arange(3), bad = at::arange(3) + 2;
  for (int i = 0; i < 3; ++i) {
    CHECK(at::equal(g(x, good), at::full({3}, 2.0)));
    CHECK_THROWS_AS(g(x, bad), c10::Error);
  }
}

TEST_CASE("a compiled program that was moved from says so") {
  c10::NoGradGuard no_grad;
  auto f = broach::compile([](const Tensor& x) { return x + 1; }, Options().pure());
  auto g = std::move(f);
  CHECK(at::equal(g(at::ones({2})), at::full({2}, 2.0)));
  CHECK(has(error_of([&] { f(at::ones({2})); }), "moved from"));
  CHECK(has(error_of([&] { f.explain(); }), "moved from"));
  CHECK(has(error_of([&] { f.reset(); }), "moved from"));
  f = g;
  CHECK(at::equal(f(at::ones({2})), at::full({2}, 2.0)));
}

TEST_CASE("the table of what was compiled accounts for every call") {
  c10::NoGradGuard no_grad;
  auto f = broach::compile([](const Tensor& x) { return x + 1; }, Options().pure());
  for (int i = 0; i < 3; ++i) f(at::ones({2}));
  CHECK(has(f.explain().str(), "3 (1 recorded, 2 compiled, 0 eager)"));
}

TEST_CASE("tensors of the program's own memory, or of its other threads, are refused, and those that it holds are not") {
  c10::NoGradGuard no_grad;
  const Options pure = Options().pure();
  const Tensor x = at::ones({3});
  auto local = broach::compile(
      [](const Tensor& t) {
        float numbers[] = {1, 2, 3};
        return t * at::from_blob(numbers, {3});
      },
      pure);
  auto copied = broach::compile(
      [](const Tensor& t) {
        float numbers[] = {1, 2, 3};
        return t * at::from_blob(numbers, {3}).clone();
      },
      pure);
  auto elsewhere = broach::compile(
      [](const Tensor& t) {
        Tensor y;
        std::thread([&] { y = t * 2; }).join();
        return y + 1;
      },
      pure);
  for (const auto* f : {&local, &copied}) CHECK(has(error_of([&] { (*f)(x); }), "from_blob"));
  CHECK(has(error_of([&] { elsewhere(x); }), "another thread"));

  float memory[] = {1, 2, 3};
  const Tensor held = at::from_blob(memory, {3});
  auto holds = broach::compile([held](const Tensor& t) { return t * held; }, pure);
  for (float first : {1.f, 5.f}) {
    memory[0] = first;
    CHECK(at::equal(holds(x), x * held));
  }
}

TEST_CASE("calls: windows of one buffer, one of which is written") {
  c10::NoGradGuard no_grad;
  auto program = [](Tensor a, const Tensor& b) { return a.add_(b + 1), a * 2 + b; };
  auto fast = broach::compile(program, Options().pure());
  auto check = [&](int64_t a, int64_t b) {
    const Tensor mine = at::randn({40}), theirs = mine.clone();
    auto window = [](const Tensor& of, int64_t at) { return of.slice(0, at, at + 8); };
    CHECK(at::allclose(fast(window(mine, a), window(mine, b)), program(window(theirs, a), window(theirs, b))));
    CHECK(at::allclose(mine, theirs));
  };
  for (int64_t i = 0; i < 8; ++i) check(i, 30 - i);  // apart
  check(20, 3), check(0, 8), check(8, 0);
  CHECK(fast.explain().compiled_calls >= 9);
  const Tensor x = at::randn({40});
  CHECK(has(error_of([&] { fast(x.slice(0, 4, 12), x.slice(0, 8, 16)); }), "shares its memory with another"));  // where they meet
}

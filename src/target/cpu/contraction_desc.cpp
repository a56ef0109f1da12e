#include "target/cpu/contraction_desc.h"

#include <algorithm>
#include <mutex>

#include "support/error.h"
#include "support/recently_used.h"

namespace broach::cpu {

using onednn::MatmulDesc;
using onednn::PostOp;
using onednn::Primitive;

std::optional<onednn::DType> onednn_type(DType t) {
  switch (t) {
    case DType::f32: return onednn::DType::f32;
    case DType::bf16: return onednn::DType::bf16;
    default: return std::nullopt;
  }
}

namespace {

// A window with concrete sizes.
struct Window {
  Dims dims, strides;
  onednn::DType dtype;

  onednn::Operand operand() const { return {.dims = dims, .dtype = dtype, .strides = strides}; }
};

Window window(const Operand& o, std::span<const int64_t> symbols) {
  return {evaluated<Dims>(o.type.shape, symbols), evaluated<Dims>(o.place.strides, symbols), *onednn_type(o.type.dtype)};
}

}  // namespace

onednn::MathMode math_mode(ContractionRules::Math m) {
  switch (m) {
    case ContractionRules::Math::exact: return onednn::MathMode::strict;
    case ContractionRules::Math::tf32: return onednn::MathMode::tf32;
    case ContractionRules::Math::bf16: return onednn::MathMode::bf16;
  }
  fail("cpu: unknown precision of contractions");
}

namespace {

struct PostRow {
  Op op;
  PostOp::Kind kind;
  float alpha = 0, beta = 0;
  bool keeps_nan = true;
};
constexpr PostRow kPostOps[] = {
    {.op = Op::relu, .kind = PostOp::relu, .keeps_nan = false},
    {.op = Op::gelu_erf, .kind = PostOp::gelu_erf},
    {.op = Op::gelu_tanh, .kind = PostOp::gelu_tanh},
    {.op = Op::silu, .kind = PostOp::swish, .alpha = 1},
    {.op = Op::hardsigmoid, .kind = PostOp::hardsigmoid, .alpha = 1.0f / 6, .beta = 0.5f, .keeps_nan = false},
    {.op = Op::tanh, .kind = PostOp::tanh},
    {.op = Op::sigmoid, .kind = PostOp::sigmoid},
    {.op = Op::add, .kind = PostOp::add},
    {.op = Op::mul, .kind = PostOp::mul},
};

PostOp post_op(Op op) {
  const auto* row = std::ranges::find(kPostOps, op, &PostRow::op);
  check(row != std::end(kPostOps), "cpu: ", name_of(op), " is no epilogue");
  return {row->kind, row->alpha, row->beta};
}

// Whether dimensions d and d+1 can be one in this window.
bool mergeable(const Window& w, size_t d) {
  return w.dims[d] == 1 || w.dims[d + 1] == 1 || w.strides[d] == w.strides[d + 1] * w.dims[d + 1];
}

void merge(Window& w, size_t d) {
  if (w.dims[d + 1] != 1 || w.dims[d] == 1) w.strides[d] = w.dims[d + 1] == 1 ? w.strides[d] : w.strides[d + 1];
  w.dims[d] *= w.dims[d + 1];
  w.dims.erase(w.dims.begin() + static_cast<int64_t>(d) + 1);
  w.strides.erase(w.strides.begin() + static_cast<int64_t>(d) + 1);
}

void insert_unit(Window& w, size_t at) {
  w.dims.insert(w.dims.begin() + static_cast<int64_t>(at), 1);
  w.strides.insert(w.strides.begin() + static_cast<int64_t>(at), 1);
}

// Broadcasting a vector over a result of this rank, along dimension `at`.
onednn::Operand vector_operand(const Window& v, size_t rank, size_t at) {
  Window w{Dims(rank, 1), Dims(rank, 1), v.dtype};
  for (size_t d = 0; d < v.dims.size(); ++d)
    if (v.dims[d] != 1) w.dims[at] = v.dims[d], w.strides[at] = v.strides[d];
  return w.operand();
}

}  // namespace

std::set<Op> activations(bool exact) {
  std::set<Op> out;
  for (const PostRow& row : kPostOps)
    if (is_activation(row.op) && (row.keeps_nan || !exact)) out.insert(row.op);
  return out;
}

// All windows with the rank and dimensions of the result share these; returns [.., m, k] x [.., k, n] -> [.., m, n].
MatmulDesc matmul_desc(const ContractionStep& step, std::span<const int64_t> symbols) {
  auto batch = static_cast<size_t>(step.operation.integer(Attr::batch));
  Window a = window(step.operands[0], symbols), b = window(step.operands[1], symbols), c = window(step.result, symbols);
  std::vector<Window> posts;
  for (const auto& e : step.epilogue)
    if (e.operand) posts.push_back(window(*e.operand, symbols));
  auto all = [&](size_t d) {
    return mergeable(a, d) && mergeable(c, d) && std::all_of(posts.begin(), posts.end(), [&](const Window& p) { return mergeable(p, d); });
  };
  // The m dimensions [batch, rank - 1) become one where memory allows.
  for (size_t d = batch; d + 2 < c.dims.size();) {
    if (!all(d)) {
      ++d;
      continue;
    }
    merge(a, d);
    merge(c, d);
    for (Window& p : posts) merge(p, d);
  }
  if (a.dims.size() == batch + 1) {  // a vector: one row
    insert_unit(a, batch);
    insert_unit(c, batch);
    for (Window& p : posts) insert_unit(p, batch);
  }
  while (b.dims.size() < c.dims.size()) insert_unit(b, batch);  // m dimensions left over are batches with one weight
  MatmulDesc desc{a.operand(), b.operand(), c.operand()};
  if (step.bias) desc.bias = vector_operand(window(*step.bias, symbols), c.dims.size(), c.dims.size() - 1);
  size_t next = 0;
  for (const auto& e : step.epilogue) {
    PostOp p = post_op(e.op);
    if (e.operand) p.operand = posts[next++].operand();
    desc.post.push_back(std::move(p));
  }
  return desc;
}

onednn::ConvDesc conv_desc(const ContractionStep& step, std::span<const int64_t> symbols) {
  const Operation& n = step.operation;
  const bool to_weight = n.op == Op::conv_weight_gradient;
  Window x = window(step.operands[0], symbols), w = window(to_weight ? step.result : step.operands[1], symbols),
         y = window(to_weight ? step.operands[1] : step.result, symbols);
  const Dims kernel(w.dims.begin() + 2, w.dims.end());
  const bool transposed = !to_weight && n.integer(Attr::transposed) != 0;
  int64_t groups = n.integer(Attr::groups);
  if (groups > 1) {  // [G, O/G, I/G, ...]; torch stores transposed weights as [I, O/G, ...]
    w.dims.insert(w.dims.begin(), groups);
    w.dims[1] /= groups;
    w.strides.insert(w.strides.begin(), w.strides[0] * w.dims[1]);
  }
  if (transposed) {
    size_t o = groups > 1 ? 1 : 0;
    std::swap(w.dims[o], w.dims[o + 1]);
    std::swap(w.strides[o], w.strides[o + 1]);
  }
  onednn::ConvDesc desc{.src = x.operand(),
                        .weight = w.operand(),
                        .dst = y.operand(),
                        .bias = {},
                        .strides = n.ints(Attr::stride),
                        .dilations = {},
                        .pad_l = {},
                        .pad_r = {},
                        .transposed = transposed,
                        .to_weight = to_weight,
                        .post = {}};
  desc.weight.any = true;
  desc.pad_l = evaluated<Dims>(n.sizes(Attr::padding), symbols);
  const Dims extra = transposed ? evaluated<Dims>(n.sizes(Attr::output_padding), symbols) : Dims(desc.pad_l.size());
  for (size_t i = 0; i < desc.pad_l.size(); ++i) {
    int64_t d = n.ints(Attr::dilation)[i], k = d * (kernel[i] - 1) + 1, s = desc.strides[i];
    desc.dilations.push_back(d - 1);
    // What the right side must be padded with (or lose) so that the sizes fit exactly.
    desc.pad_r.push_back(transposed ? desc.pad_l[i] - extra[i] : (y.dims[i + 2] - 1) * s + k - x.dims[i + 2] - desc.pad_l[i]);
  }
  if (step.bias) {
    Window b = window(*step.bias, symbols);
    desc.bias = vector_operand(b, 1, 0);
  }
  for (const auto& e : step.epilogue) {
    PostOp p = post_op(e.op);
    if (e.operand) p.operand = window(*e.operand, symbols).operand();
    desc.post.push_back(std::move(p));
  }
  return desc;
}

namespace {

// [N, C, points..] as [N * points, C], if it lies so; what is the same at all points has their sizes, too.
std::optional<onednn::Operand> points_of(const onednn::Operand& o, const Dims& points) {
  Window w{o.dims, o.strides, o.dtype};
  if (w.dims.size() != points.size()) return std::nullopt;
  for (size_t d = 0; d < points.size(); ++d)
    if (d != 1 && w.dims[d] != points[d]) {
      if (w.dims[d] != 1) return std::nullopt;
      w.dims[d] = points[d], w.strides[d] = 0;
    }
  std::rotate(w.dims.begin() + 1, w.dims.begin() + 2, w.dims.end());
  std::rotate(w.strides.begin() + 1, w.strides.begin() + 2, w.strides.end());
  while (w.dims.size() > 2) {
    if (!mergeable(w, 0)) return std::nullopt;
    merge(w, 0);
  }
  return w.operand();
}

}  // namespace

std::optional<MatmulDesc> pointwise_product(const onednn::ConvDesc& desc) {
  auto all = [](const Dims& dims, int64_t value) { return std::ranges::all_of(dims, [&](int64_t d) { return d == value; }); };
  const bool is_pointwise = !desc.transposed && desc.weight.dims.size() == desc.src.dims.size() &&
                            all(Dims(desc.weight.dims.begin() + 2, desc.weight.dims.end()), 1) && all(desc.strides, 1) &&
                            all(desc.pad_l, 0) && all(desc.pad_r, 0);
  const auto a = is_pointwise ? points_of(desc.src, desc.src.dims) : std::nullopt;
  const auto c = is_pointwise ? points_of(desc.dst, desc.dst.dims) : std::nullopt;
  if (!a || !c) return std::nullopt;
  auto matrix = [](const onednn::Operand& o, size_t rows, size_t columns) {
    return onednn::Operand{.dims = {o.dims[rows], o.dims[columns]}, .dtype = o.dtype, .strides = {o.strides[rows], o.strides[columns]}};
  };
  const onednn::Operand& w = desc.weight;
  if (desc.to_weight) return MatmulDesc{.a = matrix(*c, 1, 0), .b = *a, .c = matrix(w, 0, 1), .math = desc.math};
  MatmulDesc out{*a, matrix(w, 1, 0), *c};
  if (desc.bias)
    out.bias = onednn::Operand{.dims = {1, desc.bias->dims[0]}, .dtype = desc.bias->dtype, .strides = {0, desc.bias->strides[0]}};
  for (PostOp p : desc.post) {
    if (p.binary()) {
      const auto operand = points_of(p.operand, desc.dst.dims);
      if (!operand) return std::nullopt;
      p.operand = *operand;
    }
    out.post.push_back(std::move(p));
  }
  return out;
}

// A tensor added to a batch of one looks to oneDNN 3.2 like a broadcast it has no kernel for. Such a sum starts from the
// destination instead: the operand, by its position among those of the epilogue, is copied there first.
std::optional<size_t> sum_in_place(onednn::ConvDesc& desc) {
  size_t position = 0;
  for (PostOp& p : desc.post) {
    if (!p.binary()) continue;
    if (desc.dst.dims[0] == 1 && p.kind == PostOp::add && p.operand.dims == desc.dst.dims && p.operand.strides == desc.dst.strides &&
        p.operand.dtype == desc.dst.dtype) {
      p = PostOp{PostOp::sum, 1.0f};
      return position;
    }
    ++position;
  }
  return std::nullopt;
}

namespace {

// Primitives of the process by what they compute: layers of one shape share one. Those that nobody asked for lately live with
// the contractions that use them.
struct Library {
  static constexpr size_t kMost = 1024;
  std::mutex mutex;
  RecentlyUsed<std::string, std::shared_ptr<const Primitive>> primitives{kMost};
  static Library& get() {
    static Library* library = new Library;
    return *library;
  }
};

void append(std::string& key, const onednn::Operand& o) {
  key += cat(static_cast<int>(o.dtype), o.any ? "any" : o.layout ? o.layout.text() : "", ":");
  for (int64_t d : o.dims) key += cat(d, ",");
  key += "/";
  for (int64_t s : o.strides) key += cat(s, ",");
  key += ";";
}

void append(std::string& key, const std::vector<PostOp>& posts) {
  for (const PostOp& p : posts) {
    key += cat("p", static_cast<int>(p.kind));
    if (p.binary()) append(key, p.operand);
  }
}

}  // namespace

std::string key_of(const MatmulDesc& d) {
  std::string key = "mm";
  for (const auto* o : {&d.a, &d.b, &d.c}) append(key, *o);
  if (d.bias) append(key, *d.bias);
  append(key, d.post);
  return key += cat("math", static_cast<int>(d.math));
}

std::string key_of(const onednn::ConvDesc& d) {
  std::string key = d.to_weight ? "to weight" : d.transposed ? "deconv" : "conv";
  for (const auto* o : {&d.src, &d.weight, &d.dst}) append(key, *o);
  if (d.bias) append(key, *d.bias);
  for (const auto* v : {&d.strides, &d.dilations, &d.pad_l, &d.pad_r})
    for (int64_t i : *v) key += cat(i, ",");
  append(key, d.post);
  return key += cat("math", static_cast<int>(d.math));
}

namespace {

template <class Desc>
std::shared_ptr<const Primitive> find_or_create(const Desc& desc) {
  Library& library = Library::get();
  std::string key = key_of(desc);
  {
    std::lock_guard lock(library.mutex);
    if (auto known = library.primitives.find(key)) return *known;
  }
  auto p = Primitive::create(desc);
  std::lock_guard lock(library.mutex);
  return library.primitives.insert(std::move(key), std::move(p));
}

// The library's kernels take an operand behind a contraction that is repeated along some dimensions for dense along the others, whatever
// its description says.
bool lie_as_taken(const std::vector<PostOp>& post, const Dims& result) {
  return std::ranges::all_of(post, [&](const PostOp& p) {
    const Dims dims = onednn::unexpanded(p.operand, p.operand.dims.size()).dims;
    if (!p.binary() || dims == result) return true;
    int64_t next = 1;
    for (size_t d = dims.size(); d-- > 0; next *= dims[d])
      if (dims[d] != 1 && p.operand.strides[d] != next) return false;
    return true;
  });
}

}  // namespace

std::shared_ptr<const Primitive> primitive_for(const MatmulDesc& desc) {
  return lie_as_taken(desc.post, desc.c.dims) ? find_or_create(desc) : nullptr;
}
std::shared_ptr<const Primitive> primitive_for(const onednn::ConvDesc& desc) {
  return lie_as_taken(desc.post, desc.dst.dims) ? find_or_create(desc) : nullptr;
}

onednn::Operand operand_of(const Operand& o, std::span<const int64_t> symbols) { return window(o, symbols).operand(); }

}  // namespace broach::cpu

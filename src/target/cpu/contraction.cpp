#include "target/cpu/contraction.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>

#include "support/error.h"
#include "support/recently_used.h"
#include "target/cpu/choice.h"
#include "target/cpu/epilogue.h"
#include "target/cpu/onednn.h"

namespace broach::cpu {

namespace {

using onednn::MatmulDesc;
using onednn::PostOp;
using onednn::Primitive;
using Dims = std::vector<int64_t>;

std::optional<onednn::DType> onednn_type(DType t) {
  switch (t) {
    case DType::f32: return onednn::DType::f32;
    case DType::bf16: return onednn::DType::bf16;
    default: return std::nullopt;
  }
}

// A window with concrete sizes.
struct Window {
  Dims dims, strides;
  onednn::DType dtype;

  onednn::Operand operand() const { return {.dims = dims, .dtype = dtype, .strides = strides}; }
};

Dims evaluate(const Shape& s, std::span<const int64_t> symbols) {
  Dims out;
  for (const SymInt& e : s) out.push_back(e.eval(symbols));
  return out;
}

Window window(const Operand& o, std::span<const int64_t> symbols) {
  return {evaluate(o.type.shape, symbols), evaluate(o.place.strides, symbols), *onednn_type(o.type.dtype)};
}

onednn::MathMode math_mode(ContractionRules::Math m) {
  switch (m) {
    case ContractionRules::Math::exact: return onednn::MathMode::strict;
    case ContractionRules::Math::tf32: return onednn::MathMode::tf32;
    case ContractionRules::Math::bf16: return onednn::MathMode::bf16;
  }
  fail("cpu: unknown precision of contractions");
}

PostOp::Kind post_kind(Op op) {
  switch (op) {
    case Op::relu: return PostOp::relu;
    case Op::gelu_erf: return PostOp::gelu_erf;
    case Op::gelu_tanh: return PostOp::gelu_tanh;
    case Op::silu: return PostOp::swish;
    case Op::tanh: return PostOp::tanh;
    case Op::sigmoid: return PostOp::sigmoid;
    case Op::add: return PostOp::add;
    case Op::mul: return PostOp::mul;
    default: fail("cpu: ", name_of(op), " is no epilogue");
  }
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

// All windows with the rank and dimensions of the result share these; returns [.., m, k] x [.., k, n] -> [.., m, n].
MatmulDesc matmul_desc(const ContractionStep& step, std::span<const int64_t> symbols) {
  auto batch = static_cast<size_t>(step.node->integer(Attr::batch));
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
    PostOp p{post_kind(e.op), e.op == Op::silu ? 1.0f : 0.0f};
    if (e.operand) p.operand = posts[next++].operand();
    desc.post.push_back(std::move(p));
  }
  return desc;
}

onednn::ConvDesc conv_desc(const ContractionStep& step, std::span<const int64_t> symbols) {
  const Node& n = *step.node;
  Window x = window(step.operands[0], symbols), w = window(step.operands[1], symbols), y = window(step.result, symbols);
  bool transposed = n.integer(Attr::transposed) != 0;
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
  onednn::ConvDesc desc{.src = x.operand(), .weight = w.operand(), .dst = y.operand(), .bias = {}, .strides = n.ints(Attr::stride), .dilations = {}, .pad_l = {}, .pad_r = {}, .transposed = transposed, .post = {}};
  desc.weight.any = true;
  desc.pad_l = evaluate(n.sizes(Attr::padding), symbols);
  Dims extra = evaluate(n.sizes(Attr::output_padding), symbols);
  for (size_t i = 0; i < desc.pad_l.size(); ++i) {
    int64_t d = n.ints(Attr::dilation)[i], k = d * (step.operands[1].type.shape[i + 2].eval(symbols) - 1) + 1, s = desc.strides[i];
    desc.dilations.push_back(d - 1);
    // What the right side must be padded with (or lose) so that the sizes fit exactly.
    desc.pad_r.push_back(transposed ? desc.pad_l[i] - extra[i] : (y.dims[i + 2] - 1) * s + k - x.dims[i + 2] - desc.pad_l[i]);
  }
  if (step.bias) {
    Window b = window(*step.bias, symbols);
    desc.bias = vector_operand(b, 1, 0);
  }
  for (const auto& e : step.epilogue) {
    PostOp p{post_kind(e.op), e.op == Op::silu ? 1.0f : 0.0f};
    if (e.operand) p.operand = window(*e.operand, symbols).operand();
    desc.post.push_back(std::move(p));
  }
  return desc;
}

// A tensor added to a batch of one looks to oneDNN 3.2 like a broadcast it has no kernel for. Such a sum starts from the
// destination instead: the operand, by its position among those of the epilogue, is copied there first.
std::optional<size_t> sum_in_place(onednn::ConvDesc& desc) {
  size_t position = 0;
  for (PostOp& p : desc.post) {
    if (!p.binary()) continue;
    if (desc.dst.dims[0] == 1 && p.kind == PostOp::add && p.operand.dims == desc.dst.dims && p.operand.strides == desc.dst.strides && p.operand.dtype == desc.dst.dtype) {
      p = PostOp{PostOp::sum, 1.0f};
      return position;
    }
    ++position;
  }
  return std::nullopt;
}

// Primitives of the process by what they compute: layers of one shape share one. Those that nobody asked for lately live with
// the contractions that use them.
struct Library {
  static constexpr size_t kMost = 512;
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

std::string key_of(const MatmulDesc& d) {
  std::string key = "mm";
  for (const auto* o : {&d.a, &d.b, &d.c}) append(key, *o);
  if (d.bias) append(key, *d.bias);
  append(key, d.post);
  return key += cat("math", static_cast<int>(d.math));
}

std::string key_of(const onednn::ConvDesc& d) {
  std::string key = d.transposed ? "deconv" : "conv";
  for (const auto* o : {&d.src, &d.weight, &d.dst}) append(key, *o);
  if (d.bias) append(key, *d.bias);
  for (const auto* v : {&d.strides, &d.dilations, &d.pad_l, &d.pad_r})
    for (int64_t i : *v) key += cat(i, ",");
  append(key, d.post);
  return key += cat("math", static_cast<int>(d.math));
}

template <class Desc>
std::shared_ptr<const Primitive> primitive_for(const Desc& desc) {
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

void* aligned_scratch(std::vector<char>& memory, size_t bytes) {
  if (bytes == 0) return nullptr;
  if (memory.size() < bytes + 64) memory.resize(bytes + 64);
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});
}

class OneDnnContraction : public CompiledContraction {
 public:
  OneDnnContraction(const ContractionStep& step, const CompileSettings& settings)
      : step_(step), settings_(settings) {
    settings_.progress = nullptr;  // what is compiled later is nobody's progress
    std::vector<SymbolId> symbols;
    auto collect = [&](const Operand& o) {
      for (const auto& e : o.type.shape) e.collect_symbols(symbols);
      for (const auto& e : o.place.strides) e.collect_symbols(symbols);
    };
    for (const auto& o : step.operands) collect(o);
    collect(step.result);
    for (const auto& e : step.epilogue)
      if (e.operand) collect(*e.operand);
    is_static_ = symbols.empty();
    if (is_static_) fixed_ = build({});
  }

  void run(const ContractionArgs& args) const override {
    const Built sized = is_static_ ? Built{} : for_sizes(args.symbols);
    const Built& built = is_static_ ? fixed_ : sized;
    if (built.empty) return;
    const void* prepared = args.packed_layout == built.layout ? args.packed_weight : nullptr;
    if (!built.choice) return run(built, args, prepared);
    Choice::Set available = 0;
    if (args.operands[1]) available |= Choice::set_of(Candidate::plain) | (built.host ? Choice::set_of(Candidate::host) : 0);
    if (prepared) available |= Choice::set_of(Candidate::packed);
    if (auto decided = built.choice->decided()) return run(built, args, prepared, available & Choice::set_of(*decided) ? *decided : prepared ? Candidate::packed : Candidate::plain);
    Candidate c = built.choice->next(available);
    auto start = std::chrono::steady_clock::now();
    run(built, args, prepared, c);
    built.choice->record(c, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }

  size_t packed_bytes(std::span<const int64_t> symbols, bool trial) const override {
    Built b = is_static_ ? fixed_ : for_sizes(symbols);
    if (b.empty) return 0;
    if (b.packed) return trial || wants_packed(b) ? b.packed->packed_weight_bytes() : 0;
    return b.needs_packing ? b.primitive->packed_weight_bytes() : 0;
  }

  size_t packed_layout(std::span<const int64_t> symbols) const override { return (is_static_ ? fixed_ : for_sizes(symbols)).layout; }

  size_t packing_trial(std::span<const int64_t> symbols) const override {
    Built b = is_static_ ? fixed_ : for_sizes(symbols);
    return b.choice && !b.choice->decided() && b.choice->tries(Candidate::packed) ? reinterpret_cast<size_t>(b.choice.get()) : 0;
  }

  bool is_settled(std::span<const int64_t> symbols) const override {
    Built b = is_static_ ? fixed_ : for_sizes(symbols);
    return !b.choice || b.choice->decided();
  }

  void pack(std::span<const int64_t> symbols, const void* weight, void* packed) const override {
    Built b = is_static_ ? fixed_ : for_sizes(symbols);
    (b.packed ? b.packed : b.primitive)->pack_weight(weight, packed);
  }

  std::string pick(std::span<const int64_t> symbols) const override {
    Built b = is_static_ ? fixed_ : for_sizes(symbols);
    if (b.empty) return "nothing to do";
    std::string text = "onednn " + b.primitive->implementation() + (wants_packed(b) || b.needs_packing ? " packed" : "");
    if (b.source_reorder) text += ", operand copied";
    if (b.result_reorder) text += ", result copied";
    if (b.epilogue) text += ", epilogue apart";
    auto decided = b.choice ? b.choice->decided() : std::nullopt;
    if (decided == Candidate::host) text = "aten";
    if (b.primitive->text().find("math mode") != std::string::npos) text += math() == ContractionRules::Math::bf16 ? ", bf16 allowed" : ", tf32 allowed";
    if (b.choice) text += cat(decided ? " [" : " [being measured: ", b.choice->text(), "]");
    return b.primitive->is_reference() ? text + " (slow: " + b.primitive->text() + ")" : text;
  }

 private:
  struct Built {
    std::shared_ptr<const Primitive> primitive;
    std::shared_ptr<const Primitive> packed;  // the variant that wants its weight packed
    bool packs_by_rule = false;               // that variant is the one to use unless another was measured to be faster
    std::shared_ptr<Choice> choice;           // null: the rule holds
    std::optional<HostProduct> host;          // sizes and strides of the host's candidate
    bool needs_packing = false;               // `primitive` itself wants it packed
    size_t layout = 0;                        // of the packed weight
    // To and from the layouts that the primitive wants, where it has no fast path for those of the operands.
    std::shared_ptr<const Primitive> source_reorder, result_reorder;
    std::optional<size_t> summed;  // the epilogue operand to be copied into the result first
    // What the primitive leaves out, from its result in scratch memory.
    std::shared_ptr<const CompiledKernel> epilogue;
    bool biased = true;  // the primitive adds the bias
    bool empty = false;
  };

  static bool wants_packed(const Built& b) {
    if (!b.packed) return false;
    auto decided = b.choice ? b.choice->decided() : std::nullopt;
    return decided ? *decided == Candidate::packed : b.packs_by_rule;
  }

  void run(const Built& built, const ContractionArgs& args, const void* prepared, Candidate candidate) const {
    if (candidate != Candidate::host) return run(built, args, candidate == Candidate::packed ? prepared : nullptr);
    HostProduct p = *built.host;
    p.a = args.operands[0], p.b = args.operands[1], p.bias = args.bias, p.c = args.result;
    settings_.host_product(p);
  }

  void run(const Built& built, const ContractionArgs& args, const void* prepared) const {
    thread_local std::vector<char> memory, weight_memory;
    const void* weight = prepared;
    if (!weight) {
      weight = args.operands[1];
      if (built.needs_packing) {
        void* packed = aligned_scratch(weight_memory, built.primitive->packed_weight_bytes());
        built.primitive->pack_weight(weight, packed);
        weight = packed;
      }
    }
    const Primitive& p = prepared && built.packed ? *built.packed : *built.primitive;
    // One piece of scratch memory: the operand and the result in oneDNN's layouts, if those differ, then the primitive's own.
    size_t source_bytes = built.source_reorder ? round_up(p.src_bytes()) : 0, result_bytes = built.result_reorder || built.epilogue ? round_up(p.dst_bytes()) : 0;
    // Where the epilogue is a kernel, its operand lies between: the result, or the result back in a plain layout.
    size_t product_bytes = built.epilogue && built.result_reorder ? round_up(built.result_reorder->dst_bytes()) : 0;
    size_t own = p.scratchpad_bytes();
    for (const auto& r : {built.source_reorder, built.result_reorder})
      if (r) own = std::max(own, r->scratchpad_bytes());
    auto* scratch = static_cast<std::byte*>(aligned_scratch(memory, source_bytes + result_bytes + product_bytes + own));
    auto* own_scratch = scratch + source_bytes + result_bytes + product_bytes;
    const void* source = args.operands[0];
    if (built.source_reorder) {
      built.source_reorder->run(source, nullptr, nullptr, scratch, {}, own_scratch);
      source = scratch;
    }
    if (built.epilogue) {
      void* product = scratch + source_bytes;
      p.run(source, weight, built.biased ? args.bias : nullptr, product, {}, own_scratch);
      if (built.result_reorder) {
        built.result_reorder->run(product, nullptr, nullptr, scratch + source_bytes + result_bytes, {}, own_scratch);
        product = scratch + source_bytes + result_bytes;
      }
      run_epilogue(built, args, product);
      return;
    }
    void* result = built.result_reorder ? scratch + source_bytes : args.result;
    const void* operands[8];
    size_t count = 0;
    for (size_t i = 0; i < args.epilogue.size(); ++i)
      if (i != built.summed) operands[count++] = args.epilogue[i];
    if (built.summed && result != args.epilogue[*built.summed]) std::memcpy(result, args.epilogue[*built.summed], p.dst_bytes());
    p.run(source, weight, args.bias, result, {operands, count}, own_scratch);
    if (built.result_reorder) built.result_reorder->run(result, nullptr, nullptr, args.result, {}, own_scratch);
  }

  static void run_epilogue(const Built& built, const ContractionArgs& args, void* product) {
    void* buffers[11];
    size_t count = 0;
    buffers[count++] = product;
    if (!built.biased) buffers[count++] = args.bias;
    for (void* operand : args.epilogue) buffers[count++] = operand;
    buffers[count++] = args.result;
    built.epilogue->launch(buffers, nullptr, args.threads);
  }

  // What this contraction's elements may be rounded to; those in bf16 are what they are.
  ContractionRules::Math math() const {
    if (step_.result.type.dtype != DType::f32) return ContractionRules::Math::exact;
    return step_.node->op == Op::conv ? settings_.contractions.conv : settings_.contractions.dot;
  }

  static size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }
  static bool slow(const std::shared_ptr<const Primitive>& p) { return !p || p->is_reference(); }

  void build_conv(Built& b, onednn::ConvDesc desc, std::span<const int64_t> symbols) const {
    b.needs_packing = true;
    onednn::ConvDesc bare = desc;
    b.summed = sum_in_place(desc);
    b.primitive = primitive_for(desc);
    const bool binary = std::any_of(desc.post.begin(), desc.post.end(), [](const PostOp& p) { return p.binary() || p.kind == PostOp::sum; });
    if (slow(b.primitive) && !lay_out(b, desc, binary)) compute_apart(b, bare, bare.dst, channels_last(bare.dst.dims), symbols);
  }

  // Computes the bare product into memory with these strides, and what follows it in a kernel. False, and nothing changed, if
  // oneDNN has no fast code for that either. `result` is the description's own.
  template <class Desc>
  bool compute_apart(Built& b, Desc& desc, onednn::Operand& result, const Dims& strides, std::span<const int64_t> symbols) const {
    const Desc given = desc;
    const Dims dims = evaluate(step_.result.type.shape, symbols);
    desc.post.clear();
    result.strides = strides;
    for (DType t : {DType::f32, step_.result.type.dtype})
      for (bool biased : {true, false}) {
        if (!biased && !given.bias) continue;
        desc.bias = biased ? given.bias : std::nullopt;
        result.dtype = *onednn_type(t);
        auto bare = primitive_for(desc);
        if constexpr (std::is_same_v<Desc, onednn::ConvDesc>) {
          if (slow(bare) && !lay_out(b, desc, false)) continue;
          if (slow(bare)) bare = b.primitive;
        }
        if (slow(bare)) continue;
        b.primitive = std::move(bare), b.biased = biased, b.summed = std::nullopt;
        b.epilogue = compile_epilogue(step_, t, step_.node->op == Op::conv ? channels_last(dims) : dense(dims), !biased, symbols, settings_);
        return true;
      }
    desc = given;
    return false;
  }

  // Lets oneDNN choose how a convolution's source, and result, lie. False if that does not help.
  static bool lay_out(Built& b, onednn::ConvDesc desc, bool keep_result) {
    const onednn::Operand source = desc.src, result = desc.dst;
    desc.src.any = true;
    auto better = primitive_for(desc);
    if (slow(better) && !keep_result) {
      desc.dst.any = true;
      better = primitive_for(desc);
    }
    if (slow(better)) return false;
    b.primitive = better;
    auto from = onednn::strided_layout(source), to = onednn::strided_layout(result);
    if (!(from == better->src_layout())) b.source_reorder = Primitive::reorder(from, better->src_layout());
    if (!(to == better->dst_layout())) b.result_reorder = Primitive::reorder(better->dst_layout(), to);
    return true;
  }

  static Dims dense(const Dims& dims) {
    Dims out(dims.size(), 1);
    for (size_t d = dims.size() - 1; d-- > 0;) out[d] = out[d + 1] * std::max<int64_t>(dims[d + 1], 1);
    return out;
  }

  static Dims channels_last(const Dims& dims) {
    Dims out = dense(dims);
    for (size_t d = 2; d < dims.size(); ++d) out[d] *= dims[1];
    return out[1] = 1, out;
  }

  // Matrices and tensors without a dimension of stride 1 have no fast code.
  static bool has_unit_stride(const onednn::Operand& o) {
    for (size_t d = o.dims.size() - 2; d < o.dims.size(); ++d)
      if (o.strides[d] == 1) return true;
    return false;
  }

  // On return `desc` is what is computed.
  void build_matmul(Built& b, MatmulDesc& desc, std::span<const int64_t> symbols) const {
    if (b.primitive = primitive_for(desc); !slow(b.primitive)) return;
    const MatmulDesc given = desc;
    if (!has_unit_stride(desc.b)) desc.b.any = true;
    if (!has_unit_stride(desc.a)) {
      for (size_t d = 0; d + 2 < desc.a.dims.size(); ++d)
        if (desc.a.strides[d] == 0) desc.a.dims[d] = 1;
      desc.a.strides = dense(desc.a.dims);
    }
    auto better = primitive_for(desc);
    if (!slow(better)) b.primitive = std::move(better);
    else if (!compute_apart(b, desc, desc.c, dense(desc.c.dims), symbols)) return void(desc = given);
    b.needs_packing = desc.b.any;
    onednn::Operand source = given.a;
    source.dims = desc.a.dims;
    if (desc.a.strides != given.a.strides) b.source_reorder = Primitive::reorder(onednn::strided_layout(source), onednn::strided_layout(desc.a));
  }

  Built build(std::span<const int64_t> symbols) const {
    Built b;
    if (step_.result.type.numel().eval(symbols) == 0) return b.empty = true, b;
    if (step_.node->op == Op::conv) {
      auto desc = conv_desc(step_, symbols);
      desc.math = math_mode(math());
      build_conv(b, std::move(desc), symbols);
    } else {
      auto desc = matmul_desc(step_, symbols);
      check(desc.a.dims.back() > 0, "cpu: a matrix product over nothing");
      desc.math = math_mode(math());
      build_matmul(b, desc, symbols);
      const bool as_given = !b.needs_packing && !b.source_reorder && !b.epilogue;
      int64_t rows = desc.a.dims[desc.a.dims.size() - 2];
      // Few rows read the weight once each: its layout decides. With many, packing brings a few per cent for twice the memory.
      b.packs_by_rule = rows <= kPackedRows;
      bool measures = as_given && is_worth_measuring(desc);
      if (!b.needs_packing && step_.weight_inputs[1] >= 0 && (b.packs_by_rule || measures)) {
        b.packed = packing(desc);
      }
      if (measures) find_candidates(b, desc);
    }
    if (!b.primitive) unsupported("cpu: oneDNN has no implementation for this ", name_of(step_.node->op), " of ", step_.operands[0].type.str(), " and ", step_.operands[1].type.str());
    if (b.packed || b.needs_packing) b.layout = (b.packed ? b.packed : b.primitive)->weight_layout().hash();
    return b;
  }

  // The product with its weight packed as oneDNN likes best, or, where that is padded, in narrower blocks if these need less.
  // Blocks of 48 columns are as fast as those of 64, and of 32 for a few rows; of 16 they take up to twice as long.
  // Where the number of rows changes from call to call, the layout must not.
  std::shared_ptr<const Primitive> packing(const MatmulDesc& desc) const {
    MatmulDesc d = desc;
    d.b.any = true;
    auto best = primitive_for(d);
    if (slow(best)) return nullptr;
    const size_t plain = onednn::strided_layout(desc.b).bytes();
    const bool few = is_static_ && desc.a.dims[desc.a.dims.size() - 2] <= kNarrowRows;
    d.b.any = false;
    for (int64_t columns : {48, 32}) {
      if (best->packed_weight_bytes() <= plain || (columns == 32 && !few)) break;
      d.b.layout = onednn::matmul_weight_layout(desc.b, columns);
      if (!d.b.layout || d.b.layout.bytes() >= best->packed_weight_bytes()) continue;
      if (auto narrow = primitive_for(d); !slow(narrow)) best = std::move(narrow);
    }
    return best;
  }

  // Small products cost less than knowing better would bring, and sizes that change are not met often enough.
  bool is_worth_measuring(const MatmulDesc& desc) const {
    constexpr double kFlops = 2e7, kWeightBytes = 1 << 20;
    double weight = size_of(step_.operands[1].type.dtype);
    for (int64_t d : desc.b.dims) weight *= static_cast<double>(d);
    double flops = 2.0 * static_cast<double>(desc.b.dims.back());
    for (int64_t d : desc.a.dims) flops *= static_cast<double>(d);
    return is_static_ && !settings_.contractions.deterministic && (flops >= kFlops || weight >= kWeightBytes);
  }

  void find_candidates(Built& b, const MatmulDesc& desc) const {
    Choice::Set all = Choice::set_of(Candidate::plain);
    if (b.packed) all |= Choice::set_of(Candidate::packed);
    const bool plain_bias = !desc.bias || (desc.bias->dtype == desc.c.dtype && desc.bias->dims[1] == desc.b.dims[1] && desc.bias->strides[1] == 1);
    if (settings_.host_product && desc.c.dims.size() == 2 && desc.post.empty() && plain_bias) {
      auto strides = [](const onednn::Operand& o) { return std::array{o.strides[0], o.strides[1]}; };
      b.host = HostProduct{nullptr, nullptr, nullptr, nullptr, step_.result.type.dtype, desc.a.dims[0], desc.b.dims[1], desc.a.dims[1], strides(desc.a), strides(desc.b), strides(desc.c)};
      all |= Choice::set_of(Candidate::host);
    }
    if (all == Choice::set_of(Candidate::plain)) return;
    b.choice = Choice::of(cat(key_of(desc), b.packed ? "packable" : ""), b.packed && b.packs_by_rule ? Candidate::packed : Candidate::plain, all);
  }

  Built for_sizes(std::span<const int64_t> symbols) const {
    std::vector<int64_t> key(symbols.begin(), symbols.end());
    std::lock_guard lock(mutex_);
    if (auto known = built_.find(key)) return *known;
    return built_.insert(std::move(key), build(symbols));
  }

  static constexpr int64_t kPackedRows = 96, kNarrowRows = 16;
  static constexpr size_t kMostSizes = 128;  // of which primitives are kept

  ContractionStep step_;
  CompileSettings settings_;
  bool is_static_ = false;
  Built fixed_;
  mutable std::mutex mutex_;
  mutable RecentlyUsed<std::vector<int64_t>, Built> built_{kMostSizes};
};

}  // namespace

bool has_contractions(DType dtype) { return onednn::available() && onednn_type(dtype).has_value(); }

std::shared_ptr<const CompiledContraction> make_contraction(const ContractionStep& step, const CompileSettings& settings) {
  if (!has_contractions(step.result.type.dtype)) return nullptr;
  return std::make_shared<OneDnnContraction>(step, settings);
}

}  // namespace broach::cpu

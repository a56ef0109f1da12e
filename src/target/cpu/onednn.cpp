#include "target/cpu/onednn.h"

#include <utility>

#include "support/error.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string_view>

#include "target/cpu/one_thread.h"
#include "target/cpu/onednn_functions.h"

static_assert(DNNL_VERSION_MAJOR == 3, "the C interface of oneDNN differs between major versions");

namespace broach::cpu::onednn {
namespace {

using Dims = std::vector<int64_t>;

// ---- the library ------------------------------------------------------------------------------------------------------

struct Library {
#define X(name) decltype(&dnnl_##name) name = nullptr;
  BROACH_ONEDNN_FUNCTIONS(X)
#undef X
  dnnl_engine_t engine = nullptr;
  std::string unavailable_why;
};

struct ConfiguredPath {
  std::mutex mutex;
  std::string path;
};

ConfiguredPath& configured_path() {
  static ConfiguredPath configured;
  return configured;
}

std::string library_path() {
  if (const char* path = std::getenv("BROACH_ONEDNN_LIBRARY")) return path;
  std::lock_guard lock(configured_path().mutex);
  return configured_path().path.empty() ? "libdnnl.so.3" : configured_path().path;
}

// Of the process, whoever was built with one: the programs of an instrumented host, say.
bool runs_under_sanitizer() {
  auto has = [](const char* name) { return dlsym(RTLD_DEFAULT, name) != nullptr; };
  return has("__asan_init") || has("__tsan_init") || has("__msan_init") || has("__hwasan_init");
}

// DEEPBIND makes the library prefer its own symbols to those of any other oneDNN in the process. Sanitizers refuse it,
// because it hides their malloc.
int open_flags() {
  const char* choice = std::getenv("BROACH_ONEDNN_DEEPBIND");  // 0 or 1
  bool deep = choice && *choice ? *choice != '0' : !runs_under_sanitizer();
  return RTLD_NOW | RTLD_LOCAL | (deep ? RTLD_DEEPBIND : 0);
}

// The first function that the file lacks, or "".
std::string look_up_functions(void* handle, Library& lib) {
#define X(name)                                                                  \
  lib.name = reinterpret_cast<decltype(lib.name)>(dlsym(handle, "dnnl_" #name)); \
  if (!lib.name) return "dnnl_" #name;
  BROACH_ONEDNN_FUNCTIONS(X)
#undef X
  return "";
}

std::string open_into(Library& lib) {
  const std::string path = library_path();
  void* handle = dlopen(path.c_str(), open_flags());
  if (!handle) return cat("cannot open oneDNN: ", dlerror());
  if (auto missing = look_up_functions(handle, lib); !missing.empty()) return cat(path, " lacks ", missing);
  if (lib.version()->major != 3) return cat(path, " is of major version ", lib.version()->major, ", not 3");
  if (lib.engine_create(&lib.engine, dnnl_cpu, 0) != dnnl_success) return cat(path, " has no CPU engine");
  find_openmp(handle);
  return "";
}

// Never closed, and the table never destroyed: a Primitive or a thread may outlive every static of this file.
const Library& library() {
  static const Library& opened = *[] {
    auto* lib = new Library;
    lib->unavailable_why = open_into(*lib);
    return lib;
  }();
  return opened;
}

// ---- handles and errors -----------------------------------------------------------------------------------------------

struct Destroy {
  void operator()(dnnl_memory_desc* p) const { library().memory_desc_destroy(p); }
  void operator()(dnnl_memory* p) const { library().memory_destroy(p); }
  void operator()(dnnl_stream* p) const { library().stream_destroy(p); }
  void operator()(dnnl_post_ops* p) const { library().post_ops_destroy(p); }
  void operator()(dnnl_primitive_attr* p) const { library().primitive_attr_destroy(p); }
  void operator()(dnnl_primitive_desc* p) const { library().primitive_desc_destroy(p); }
  void operator()(dnnl_primitive* p) const { library().primitive_destroy(p); }
};

template <class T>
using Owned = std::unique_ptr<T, Destroy>;

std::string_view status_name(dnnl_status_t status) {
  switch (status) {
    case dnnl_out_of_memory: return "out of memory";
    case dnnl_invalid_arguments: return "invalid arguments";
    case dnnl_unimplemented: return "unimplemented";
    case dnnl_runtime_error: return "run-time error";
    default: return "error";
  }
}

void require(dnnl_status_t status, std::string_view doing, std::string_view what) {
  if (status != dnnl_success) [[unlikely]]
    fail("oneDNN: ", status_name(status), " (status ", int(status), ") ", doing, " ", what);
}

// ---- layouts ----------------------------------------------------------------------------------------------------------

template <class List>
std::string joined(const List& list) {
  std::string out;
  for (const auto& item : list) out += (out.empty() ? "" : ",") + cat(item);
  return out;
}

dnnl_data_type_t onednn_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return dnnl_f32;
    case DType::bf16: return dnnl_bf16;
    case DType::f16: return dnnl_f16;
    case DType::s32: return dnnl_s32;
    case DType::s8: return dnnl_s8;
    case DType::u8: return dnnl_u8;
  }
  fail("oneDNN: unknown dtype ", int(dtype));
}

std::string_view type_name(dnnl_data_type_t type) {
  switch (type) {
    case dnnl_f32: return "f32";
    case dnnl_bf16: return "bf16";
    case dnnl_f16: return "f16";
    case dnnl_s32: return "s32";
    case dnnl_s8: return "s8";
    case dnnl_u8: return "u8";
    default: return "?";
  }
}

std::string text_of(const Operand& t) {
  if (t.layout) return t.layout.text();
  std::string out = cat(type_name(onednn_type(t.dtype)), "[", joined(t.dims), "]");
  if (!t.strides.empty()) out += cat(":(", joined(t.strides), ")");
  return t.any ? out + ":any" : out;
}

void validate(const Operand& t) {
  if (t.layout) return;
  check(!t.dims.empty() && t.dims.size() <= DNNL_MAX_NDIMS, "oneDNN: rank ", t.dims.size(), " of ", text_of(t), " is not in 1..",
        DNNL_MAX_NDIMS);
  check(t.strides.empty() || t.strides.size() == t.dims.size(), "oneDNN: as many strides as dims are needed in ", text_of(t));
  const auto negative = [](int64_t x) { return x < 0; };
  check(std::ranges::none_of(t.dims, negative), "oneDNN: negative dim in ", text_of(t));
  check(std::ranges::none_of(t.strides, negative), "oneDNN: negative stride in ", text_of(t));
}

bool has_empty_dim(const Operand& t) { return std::ranges::find(t.dims, 0) != t.dims.end(); }

// oneDNN checks the strides of dims of size 1, where PyTorch leaves anything: they become those of a dense tensor.
Dims normalized_strides(const Operand& t) {
  Dims out = t.strides.empty() ? Dims(t.dims.size(), 0) : t.strides;
  int64_t dense = 1;
  for (size_t d = out.size(); d-- > 0;) {
    if (t.strides.empty() || t.dims[d] == 1) out[d] = dense;
    dense = std::max(dense, out[d] * t.dims[d]);  // in channels-last order the innermost dim is not the last
  }
  return out;
}

// Null for elements that overlap, which oneDNN rejects, and for expanded ones, which it accepts but its kernels may not
// expect.
Owned<dnnl_memory_desc> strided_desc(const Operand& t) {
  validate(t);
  const Dims strides = normalized_strides(t);
  if (std::ranges::find(strides, 0) != strides.end()) return nullptr;
  dnnl_memory_desc_t desc = nullptr;
  library().memory_desc_create_with_strides(&desc, int(t.dims.size()), t.dims.data(), onednn_type(t.dtype), strides.data());
  return Owned<dnnl_memory_desc>(desc);
}

Owned<dnnl_memory_desc> copy(const dnnl_memory_desc* from) {
  dnnl_memory_desc_t desc = nullptr;
  require(library().memory_desc_clone(&desc, from), "copying", "a layout");
  return Owned<dnnl_memory_desc>(desc);
}

Owned<dnnl_memory_desc> desc_of(const Operand& t) {
  if (t.layout) return copy(t.layout.desc());
  if (!t.any) return strided_desc(t);
  validate(t);
  dnnl_memory_desc_t desc = nullptr;
  require(library().memory_desc_create_with_tag(&desc, int(t.dims.size()), t.dims.data(), onednn_type(t.dtype), dnnl_format_tag_any),
          "describing", text_of(t));
  return Owned<dnnl_memory_desc>(desc);
}

template <class T>
T query(const dnnl_memory_desc* desc, dnnl_query_t what) {
  T out{};
  require(library().memory_desc_query(desc, what, &out), "asking about", "a layout");
  return out;
}

Dims query_dims(const dnnl_memory_desc* desc, dnnl_query_t what, dnnl_query_t count) {
  const auto* dims = query<const dnnl_dims_t*>(desc, what);
  return Dims(*dims, *dims + query<int>(desc, count));
}

Dims query_dims(const dnnl_memory_desc* desc, dnnl_query_t what) { return query_dims(desc, what, dnnl_query_ndims_s32); }

bool is_blocked_kind(const dnnl_memory_desc* desc) { return query<dnnl_format_kind_t>(desc, dnnl_query_format_kind) == dnnl_blocked; }

// Inner blocks as oneDNN's tags write them: size, then the letter of the dim.
std::string blocks_text(const dnnl_memory_desc* desc) {
  const Dims sizes = query_dims(desc, dnnl_query_inner_blks, dnnl_query_inner_nblks_s32);
  const Dims dims = query_dims(desc, dnnl_query_inner_idxs, dnnl_query_inner_nblks_s32);
  std::string out;
  for (size_t i = 0; i < sizes.size(); ++i) out += cat(sizes[i], char('a' + dims[i]));
  return out.empty() ? out : "/" + out;
}

}  // namespace

MemoryLayout::MemoryLayout(const dnnl_memory_desc* copied) {
  auto owned = copy(copied);
  if (library().memory_desc_get_size(owned.get()) > 0) desc_ = std::move(owned);
}

bool MemoryLayout::operator==(const MemoryLayout& other) const {
  return desc_ == other.desc_ || (desc_ && other.desc_ && library().memory_desc_equal(desc(), other.desc()));
}

size_t MemoryLayout::hash() const { return std::hash<std::string>()(text()); }

size_t MemoryLayout::bytes() const { return desc_ ? library().memory_desc_get_size(desc()) : 0; }

// Strides of dims of size 1 are left out, as equality ignores them: equal layouts have equal texts, hence hashes.
std::string MemoryLayout::text() const {
  if (!desc_) return "none";
  const Dims dims = query_dims(desc(), dnnl_query_dims);
  std::string out = cat(type_name(query<dnnl_data_type_t>(desc(), dnnl_query_data_type)), "[", joined(dims), "]");
  if (!is_blocked_kind(desc())) return out + ":opaque";
  const Dims strides = query_dims(desc(), dnnl_query_strides);
  std::vector<std::string> shown;
  for (size_t d = 0; d < dims.size(); ++d) shown.push_back(dims[d] == 1 ? "_" : cat(strides[d]));
  return cat(out, ":(", joined(shown), ")", blocks_text(desc()));
}

std::optional<std::vector<int64_t>> MemoryLayout::strides() const {
  if (!desc_ || !is_blocked_kind(desc()) || query<int>(desc(), dnnl_query_inner_nblks_s32) > 0) return std::nullopt;
  if (query_dims(desc(), dnnl_query_padded_dims) != query_dims(desc(), dnnl_query_dims)) return std::nullopt;
  return query_dims(desc(), dnnl_query_strides);
}

bool MemoryLayout::lies_in_pairs(size_t rows, size_t columns, int64_t width) const {
  if (!desc_ || !is_blocked_kind(desc()) || query<dnnl_data_type_t>(desc(), dnnl_query_data_type) != dnnl_bf16) return false;
  const auto row = static_cast<int64_t>(rows), column = static_cast<int64_t>(columns);
  if (query_dims(desc(), dnnl_query_inner_blks, dnnl_query_inner_nblks_s32) != Dims{16, width, 2} ||
      query_dims(desc(), dnnl_query_inner_idxs, dnnl_query_inner_nblks_s32) != Dims{row, column, row})
    return false;
  const Dims dims = query_dims(desc(), dnnl_query_padded_dims), strides = query_dims(desc(), dnnl_query_strides);
  for (size_t d = 0; d < dims.size(); ++d)
    if (d != rows && d != columns && dims[d] != 1) return false;
  return (dims[rows] == 32 || strides[rows] == 32 * width) && (dims[columns] == width || strides[columns] == dims[rows] * width);
}

// What brgemm reads in 3.2: for bf16, two rows beside each other.
MemoryLayout matmul_weight_layout(const Operand& plain, int64_t columns) {
  if (!available() || plain.dims.size() < 2 || plain.dims.size() > 3) return {};
  struct Known {
    int64_t columns;
    dnnl_format_tag_t f32[2], bf16[2];  // of two and three dimensions
  };
  static constexpr Known kKnown[] = {{16, {dnnl_BA16a16b, dnnl_aCB16b16c}, {dnnl_BA16a16b2a, dnnl_aCB16b16c2b}},
                                     {32, {dnnl_BA16a32b, dnnl_aCB16b32c}, {dnnl_BA16a32b2a, dnnl_aCB16b32c2b}},
                                     {48, {dnnl_BA16a48b, dnnl_aCB16b48c}, {dnnl_BA16a48b2a, dnnl_aCB16b48c2b}},
                                     {64, {dnnl_BA16a64b, dnnl_aCB16b64c}, {dnnl_BA16a64b2a, dnnl_aCB16b64c2b}}};
  for (const Known& known : kKnown) {
    if (known.columns != columns || (plain.dtype != DType::f32 && plain.dtype != DType::bf16)) continue;
    const auto& tags = plain.dtype == DType::f32 ? known.f32 : known.bf16;
    dnnl_memory_desc_t desc = nullptr;
    require(library().memory_desc_create_with_tag(&desc, int(plain.dims.size()), plain.dims.data(), onednn_type(plain.dtype),
                                                  tags[plain.dims.size() - 2]),
            "describing", text_of(plain));
    return MemoryLayout(Owned<dnnl_memory_desc>(desc).get());
  }
  return {};
}

MemoryLayout strided_layout(const Operand& plain) {
  if (!available()) return {};
  const auto desc = strided_desc(plain);
  return desc ? MemoryLayout(desc.get()) : MemoryLayout();
}

namespace {

// ---- attributes -------------------------------------------------------------------------------------------------------

dnnl_alg_kind_t algorithm(PostOp::Kind kind) {
  switch (kind) {
    case PostOp::relu: return dnnl_eltwise_relu;
    case PostOp::gelu_tanh: return dnnl_eltwise_gelu_tanh;
    case PostOp::gelu_erf: return dnnl_eltwise_gelu_erf;
    case PostOp::swish: return dnnl_eltwise_swish;
    case PostOp::tanh: return dnnl_eltwise_tanh;
    case PostOp::sigmoid: return dnnl_eltwise_logistic;
    case PostOp::linear: return dnnl_eltwise_linear;
    case PostOp::clip: return dnnl_eltwise_clip;
    case PostOp::elu: return dnnl_eltwise_elu;
    case PostOp::hardswish: return dnnl_eltwise_hardswish;
    case PostOp::hardsigmoid: return dnnl_eltwise_hardsigmoid;
    case PostOp::softplus: return dnnl_eltwise_soft_relu;
    case PostOp::mish: return dnnl_eltwise_mish;
    case PostOp::exp: return dnnl_eltwise_exp;
    case PostOp::log: return dnnl_eltwise_log;
    case PostOp::abs: return dnnl_eltwise_abs;
    case PostOp::square: return dnnl_eltwise_square;
    case PostOp::sqrt: return dnnl_eltwise_sqrt;
    case PostOp::pow: return dnnl_eltwise_pow;
    case PostOp::round: return dnnl_eltwise_round;
    case PostOp::sum: return dnnl_alg_kind_undef;
    case PostOp::add: return dnnl_binary_add;
    case PostOp::sub: return dnnl_binary_sub;
    case PostOp::mul: return dnnl_binary_mul;
    case PostOp::div: return dnnl_binary_div;
    case PostOp::max: return dnnl_binary_max;
    case PostOp::min: return dnnl_binary_min;
  }
  fail("oneDNN: unknown post-op ", int(kind));
}

dnnl_fpmath_mode_t onednn_math(MathMode mode) {
  switch (mode) {
    case MathMode::strict: return dnnl_fpmath_mode_strict;
    case MathMode::bf16: return dnnl_fpmath_mode_bf16;
    case MathMode::f16: return dnnl_fpmath_mode_f16;
    case MathMode::tf32: return dnnl_fpmath_mode_tf32;
    case MathMode::any: return dnnl_fpmath_mode_any;
  }
  fail("oneDNN: unknown math mode ", int(mode));
}

dnnl_status_t append(dnnl_post_ops_t ops, const PostOp& op, const dnnl_memory_desc* operand) {
  const Library& lib = library();
  if (op.kind == PostOp::sum) return lib.post_ops_append_sum(ops, op.alpha, 0, dnnl_data_type_undef);
  // The library's relu makes -0.0 of what is negative where it computes x * 0.
  if (op.kind == PostOp::relu && op.alpha == 0)
    return lib.post_ops_append_eltwise(ops, dnnl_eltwise_clip, 0, std::numeric_limits<float>::infinity());
  if (op.binary()) return lib.post_ops_append_binary(ops, algorithm(op.kind), operand);
  return lib.post_ops_append_eltwise(ops, algorithm(op.kind), op.alpha, op.beta);
}

// False when the layout of an operand cannot be described.
bool append_all(dnnl_post_ops_t ops, const std::vector<PostOp>& post, std::string_view text) {
  for (const PostOp& op : post) {
    Owned<dnnl_memory_desc> operand;
    if (op.binary()) {
      operand = desc_of(unexpanded(op.operand, op.operand.dims.size()));
      if (!operand) return false;
    }
    require(append(ops, op, operand.get()), "adding a post-op to", text);
  }
  return true;
}

// Null when the layout of a post-op's operand cannot be described.
Owned<dnnl_primitive_attr> attributes(const std::vector<PostOp>& post, MathMode math, std::string_view text) {
  const Library& lib = library();
  dnnl_primitive_attr_t attr = nullptr;
  require(lib.primitive_attr_create(&attr), "creating attributes of", text);
  Owned<dnnl_primitive_attr> owned(attr);
  dnnl_post_ops_t ops = nullptr;
  require(lib.post_ops_create(&ops), "creating post-ops of", text);
  Owned<dnnl_post_ops> owned_ops(ops);
  if (!append_all(ops, post, text)) return nullptr;
  require(lib.primitive_attr_set_post_ops(attr, ops), "setting post-ops of", text);
  require(lib.primitive_attr_set_fpmath_mode(attr, onednn_math(math)), "setting the math mode of", text);
  require(lib.primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "setting the scratchpad of", text);
  return owned;
}

// ---- execution --------------------------------------------------------------------------------------------------------

// Which pointer of run() an argument takes: one of these, or post_operand + i.
enum Source : size_t { from_a, from_b, from_bias, from_c, from_scratch, post_operand };

struct Argument {
  int id;  // DNNL_ARG_*
  size_t source;
};

constexpr int post_argument(size_t index) { return DNNL_ARG_ATTR_MULTIPLE_POST_OP(int(index)) | DNNL_ARG_SRC_1; }

// What oneDNN calls the second operand and what is computed.
struct Roles {
  int second = DNNL_ARG_WEIGHTS, computed = DNNL_ARG_DST;
};
constexpr Roles kToWeight{DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS};

std::vector<Argument> arguments(const Roles& roles, bool weight, bool bias, const std::vector<PostOp>& post) {
  std::vector<Argument> out = {{DNNL_ARG_SRC, from_a}, {roles.computed, from_c}};
  if (weight) out.push_back({roles.second, from_b});
  if (bias) out.push_back({DNNL_ARG_BIAS, from_bias});
  size_t operands = 0;
  for (size_t i = 0; i < post.size(); ++i)
    if (post[i].binary()) out.push_back({post_argument(i), post_operand + operands++});
  return out;
}

// A set of dnnl_memory objects ready for execution, for use by one call at a time.
struct Pack {
  std::vector<Owned<dnnl_memory>> memories;
  std::vector<dnnl_exec_arg_t> args;
};

// A dnnl_memory holds the data pointer, so two calls at once cannot share one, and creating them anew costs as much as a small
// matmul. So every primitive keeps the packs of finished calls here; a call takes one, or makes one, and puts it back. Slots
// are exchanged whole, which needs no lock and cannot suffer ABA; packs beyond the slots are destroyed. They are owned by the
// primitive rather than by threads, so they die with it.
class PackPool {
 public:
  PackPool() = default;
  ~PackPool() {
    for (auto& slot : slots_) delete slot.load();
  }

  std::unique_ptr<Pack> take() {
    for (size_t i = 0; i < slots_.size(); ++i) {
      auto& slot = slot_for_this_thread(i);
      if (!slot.load(std::memory_order_relaxed)) continue;
      if (Pack* pack = slot.exchange(nullptr, std::memory_order_acquire)) return std::unique_ptr<Pack>(pack);
    }
    return nullptr;
  }

  void give(std::unique_ptr<Pack> pack) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      Pack* empty = nullptr;
      if (!slot_for_this_thread(i).compare_exchange_strong(empty, pack.get(), std::memory_order_release)) continue;
      pack.release();
      return;
    }
  }

 private:
  // Threads start at different slots, so that they seldom meet.
  std::atomic<Pack*>& slot_for_this_thread(size_t i) {
    static std::atomic<size_t> threads{0};
    thread_local const size_t first = threads.fetch_add(1, std::memory_order_relaxed);
    return slots_[(first + i) % slots_.size()];
  }

  std::array<std::atomic<Pack*>, 16> slots_{};
};

// oneDNN does not promise that a stream may be used by two threads at once. It is never waited for: with OpenMP,
// execution returns when the work is done.
dnnl_stream_t stream_of_this_thread() {
  thread_local const Owned<dnnl_stream> stream = [] {
    dnnl_stream_t created = nullptr;
    require(library().stream_create(&created, library().engine, dnnl_stream_default_flags), "creating", "a stream");
    return Owned<dnnl_stream>(created);
  }();
  return stream.get();
}

}  // namespace

struct Primitive::Parts {
  std::string text;
  Owned<dnnl_primitive_desc> desc;
  Owned<dnnl_primitive> primitive;
  Owned<dnnl_memory_desc> plain_weight;
  std::vector<Argument> arguments;
  Roles roles;
  size_t post_operands = 0;
  size_t scratchpad_bytes = 0;
  bool is_small = false;  // see OneThread
  mutable PackPool packs;

  const dnnl_memory_desc* argument_desc(int id) const { return library().primitive_desc_query_md(desc.get(), dnnl_query_exec_arg_md, id); }

  MemoryLayout layout(int id) const {
    const auto* found = argument_desc(id);
    return found ? MemoryLayout(found) : MemoryLayout();
  }

  std::unique_ptr<Pack> new_pack() const {
    auto pack = std::make_unique<Pack>();
    for (const Argument& argument : arguments) {
      dnnl_memory_t memory = nullptr;
      require(library().memory_create(&memory, argument_desc(argument.id), library().engine, nullptr), "binding", text);
      pack->memories.emplace_back(memory);
      pack->args.push_back({argument.id, memory});
    }
    return pack;
  }
};

// ---- creation ---------------------------------------------------------------------------------------------------------

struct Builder {
  using Result = std::shared_ptr<const Primitive>;

  std::string text;
  std::vector<PostOp> post = {};
  Roles roles = {};
  bool is_small = false;

  // `status` and `created` come from creating the primitive descriptor. As shapes have been checked, invalid arguments are
  // dtypes, layouts or attributes that oneDNN does not take, which it does not always call unimplemented.
  Result finish(dnnl_status_t status, dnnl_primitive_desc_t created, bool weight, bool bias, Owned<dnnl_memory_desc> plain_weight) {
    if (status == dnnl_unimplemented || status == dnnl_invalid_arguments) return nullptr;
    require(status, "describing", text);
    auto parts = std::make_unique<Primitive::Parts>();
    parts->text = std::move(text);
    parts->desc.reset(created);
    parts->plain_weight = std::move(plain_weight);
    parts->roles = roles;
    parts->is_small = is_small;
    parts->arguments = arguments(roles, weight, bias, post);
    parts->post_operands = size_t(std::ranges::count_if(post, &PostOp::binary));
    if (!compile(*parts)) return nullptr;
    return Result(new Primitive(std::move(parts)));
  }

  static bool compile(Primitive::Parts& parts) {
    dnnl_primitive_t primitive = nullptr;
    const dnnl_status_t status = library().primitive_create(&primitive, parts.desc.get());
    if (status == dnnl_unimplemented) return false;
    require(status, "creating", parts.text);
    parts.primitive.reset(primitive);
    parts.scratchpad_bytes = parts.layout(DNNL_ARG_SCRATCHPAD).bytes();
    if (parts.scratchpad_bytes > 0) parts.arguments.push_back({DNNL_ARG_SCRATCHPAD, from_scratch});
    return true;
  }
};

namespace {

std::string text_of(const std::optional<Operand>& bias, const std::vector<PostOp>& post, MathMode math) {
  std::string out;
  if (bias) out += cat(" + bias ", text_of(*bias));
  for (const PostOp& op : post) {
    out += cat(", post-op ", int(op.kind), "(", op.alpha, ",", op.beta, ")");
    if (op.binary()) out += " " + text_of(op.operand);
  }
  return math == MathMode::strict ? out : cat(out, ", math mode ", int(math));
}

std::string text_of(const MatmulDesc& d) {
  return cat("matmul ", text_of(d.a), " x ", text_of(d.b), " -> ", text_of(d.c), text_of(d.bias, d.post, d.math));
}

std::string text_of(const ConvDesc& d) {
  return cat(d.to_weight    ? "convolution to weight "
             : d.transposed ? "transposed convolution "
                            : "convolution ",
             text_of(d.src), " x ", text_of(d.weight), " -> ", text_of(d.dst), ", strides (", joined(d.strides), "), dilations (",
             joined(d.dilations), "), padding (", joined(d.pad_l), ")-(", joined(d.pad_r), ")", text_of(d.bias, d.post, d.math));
}

size_t batch_rank(const Operand& t) { return t.dims.size() < 2 ? 0 : t.dims.size() - 2; }

// The layout that pack_weight reads; null when the weight has no plain form.
Owned<dnnl_memory_desc> plain_desc(const Operand& weight) {
  Operand plain = weight;
  plain.layout = {};
  return plain.dims.empty() ? nullptr : strided_desc(plain);
}

// The operands of a primitive as oneDNN sees them.
struct Operands {
  Owned<dnnl_memory_desc> src, weight, plain_weight, dst, bias;
  Owned<dnnl_primitive_attr> attr;
  bool describable = false;

  Operands(const Operand& a, const Operand& b, const Operand& c, const std::optional<Operand>& with, const auto& desc,
           std::string_view text) {
    if (has_empty_dim(a) || has_empty_dim(b) || has_empty_dim(c)) return;
    src = desc_of(a), weight = desc_of(b), plain_weight = plain_desc(b), dst = desc_of(c);
    if (with) bias = desc_of(unexpanded(*with, with->dims.size()));
    attr = attributes(desc.post, desc.math, text);
    describable = src && weight && (plain_weight || b.layout) && dst && (bias || !with) && attr;
  }
};

Dims dims_of(const Operand& t) { return t.layout ? query_dims(t.layout.desc(), dnnl_query_dims) : t.dims; }

bool broadcasts(const Dims& from, const Dims& to) {
  return std::ranges::equal(from, to, [](int64_t x, int64_t y) { return x == 1 || x == y; });
}

bool extras_fit(const std::vector<PostOp>& post, const Dims& dst) {
  return std::ranges::all_of(post, [&](const PostOp& op) { return !op.binary() || broadcasts(dims_of(op.operand), dst); });
}

bool shapes_fit(const MatmulDesc& d) {
  const Dims a = dims_of(d.a), b = dims_of(d.b), c = dims_of(d.c);
  const size_t rank = c.size();
  if (rank < 2 || a.size() != rank || b.size() != rank || a[rank - 1] != b[rank - 2]) return false;
  Dims from_a = a, from_b = b;
  from_a[rank - 1] = from_b[rank - 2] = 1;
  return broadcasts(from_a, c) && broadcasts(from_b, c) && a[rank - 2] == c[rank - 2] && b[rank - 1] == c[rank - 1] &&
         (!d.bias || broadcasts(dims_of(*d.bias), c)) && extras_fit(d.post, c);
}

bool spatial_dim_fits(const ConvDesc& d, size_t i, int64_t src, int64_t kernel, int64_t dst) {
  if (d.strides[i] < 1 || d.dilations[i] < 0) return false;
  const int64_t extent = (kernel - 1) * (d.dilations[i] + 1) + 1, pad = d.pad_l[i] + d.pad_r[i];
  if (d.transposed) return dst == (src - 1) * d.strides[i] + extent - pad;
  return src + pad >= extent && dst == (src + pad - extent) / d.strides[i] + 1;
}

bool shapes_fit(const ConvDesc& d) {
  const Dims src = dims_of(d.src), weight = dims_of(d.weight), dst = dims_of(d.dst);
  const size_t rank = d.strides.size(), grouped = weight.size() == rank + 3;
  if (rank < 1 || d.dilations.size() != rank || d.pad_l.size() != rank || d.pad_r.size() != rank) return false;
  if (src.size() != rank + 2 || dst.size() != rank + 2 || weight.size() != rank + 2 + grouped) return false;
  const int64_t groups = grouped ? weight[0] : 1;
  if (src[0] != dst[0] || dst[1] != groups * weight[grouped] || src[1] != groups * weight[grouped + 1]) return false;
  for (size_t i = 0; i < rank; ++i)
    if (!spatial_dim_fits(d, i, src[i + 2], weight[grouped + 2 + i], dst[i + 2])) return false;
  return (!d.bias || dims_of(*d.bias) == Dims{dst[1]}) && extras_fit(d.post, dst);
}

}  // namespace

std::shared_ptr<const Primitive> Primitive::create(const MatmulDesc& d) {
  if (!available()) return nullptr;
  Builder builder{text_of(d), d.post};
  check(shapes_fit(d), "oneDNN: shapes that do not fit: ", builder.text);
  const OneThread alone(builder.is_small = is_for_one_thread(flops(d), bytes(d)));
  Operands o(unexpanded(d.a, batch_rank(d.a)), unexpanded(d.b, batch_rank(d.b)), d.c, d.bias, d, builder.text);
  if (!o.describable) return nullptr;
  dnnl_primitive_desc_t created = nullptr;
  const auto status = library().matmul_primitive_desc_create(&created, library().engine, o.src.get(), o.weight.get(), o.bias.get(),
                                                             o.dst.get(), o.attr.get());
  return builder.finish(status, created, true, d.bias.has_value(), std::move(o.plain_weight));
}

namespace {
// Like that of a forward convolution of the same tensors, which oneDNN asks for as a hint.
dnnl_status_t describe_to_weight(dnnl_primitive_desc_t* created, const ConvDesc& d, const Operands& o) {
  dnnl_primitive_desc_t hint = nullptr;
  const auto status = library().convolution_forward_primitive_desc_create(
      &hint, library().engine, dnnl_forward_training, dnnl_convolution_direct, o.src.get(), o.weight.get(), nullptr, o.dst.get(),
      d.strides.data(), d.dilations.data(), d.pad_l.data(), d.pad_r.data(), o.attr.get());
  if (status != dnnl_success) return status;
  const Owned<dnnl_primitive_desc> forward(hint);
  return library().convolution_backward_weights_primitive_desc_create(
      created, library().engine, dnnl_convolution_direct, o.src.get(), o.weight.get(), nullptr, o.dst.get(), d.strides.data(),
      d.dilations.data(), d.pad_l.data(), d.pad_r.data(), hint, o.attr.get());
}

}  // namespace

std::shared_ptr<const Primitive> Primitive::create(const ConvDesc& d) {
  if (!available()) return nullptr;
  Builder builder{text_of(d), d.post, d.to_weight ? kToWeight : Roles{}};
  check(shapes_fit(d), "oneDNN: shapes that do not fit: ", builder.text);
  check(!d.to_weight || (!d.transposed && !d.bias && d.post.empty()), "oneDNN: nothing follows ", builder.text);
  const OneThread alone(builder.is_small = is_for_one_thread(flops(d), bytes(d)));
  Operands o(d.src, d.weight, d.dst, d.bias, d, builder.text);
  if (!o.describable) return nullptr;
  dnnl_primitive_desc_t created = nullptr;
  const auto create_desc =
      d.transposed ? library().deconvolution_forward_primitive_desc_create : library().convolution_forward_primitive_desc_create;
  const auto status = d.to_weight ? describe_to_weight(&created, d, o)
                                  : create_desc(&created, library().engine, dnnl_forward_inference,
                                                d.transposed ? dnnl_deconvolution_direct : dnnl_convolution_direct, o.src.get(),
                                                o.weight.get(), o.bias.get(), o.dst.get(), d.strides.data(), d.dilations.data(),
                                                d.pad_l.data(), d.pad_r.data(), o.attr.get());
  return builder.finish(status, created, true, d.bias.has_value(), std::move(o.plain_weight));
}

std::shared_ptr<const Primitive> Primitive::reorder(const MemoryLayout& from, const MemoryLayout& to) {
  if (!available()) return nullptr;
  check(from && to, "oneDNN: reorder from ", from.text(), " to ", to.text(), " needs two layouts");
  Builder builder{cat("reorder ", from.text(), " -> ", to.text())};
  const OneThread alone(builder.is_small = is_for_one_thread(0, double(from.bytes() + to.bytes())));
  const auto attr = attributes({}, MathMode::strict, builder.text);
  dnnl_primitive_desc_t created = nullptr;
  const auto status =
      library().reorder_primitive_desc_create(&created, from.desc(), library().engine, to.desc(), library().engine, attr.get());
  return builder.finish(status, created, false, false, nullptr);
}

Primitive::Primitive(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Primitive::~Primitive() = default;

MemoryLayout Primitive::src_layout() const { return parts_->layout(DNNL_ARG_SRC); }
MemoryLayout Primitive::weight_layout() const { return parts_->layout(parts_->roles.second); }
MemoryLayout Primitive::dst_layout() const { return parts_->layout(parts_->roles.computed); }
MemoryLayout Primitive::post_layout(size_t i) const { return parts_->layout(post_argument(i)); }
size_t Primitive::scratchpad_bytes() const { return parts_->scratchpad_bytes; }
const std::string& Primitive::text() const { return parts_->text; }

std::string Primitive::implementation() const {
  const char* name = nullptr;
  require(library().primitive_desc_query(parts_->desc.get(), dnnl_query_impl_info_str, 0, &name), "naming", text());
  return name;
}

// A transposed convolution is named by what it is made of: "conv:any+ref:any".
bool Primitive::is_reference() const {
  const std::string name = implementation();
  return name.starts_with("ref") || name.find("+ref") != std::string::npos;
}

bool Primitive::is_unfolded() const {
  const bool convolution = !parts_->text.starts_with("matmul") && !parts_->text.starts_with("reorder");
  return convolution && implementation().find("gemm:") != std::string::npos && implementation().find("brg") == std::string::npos;
}

void Primitive::pack_weight(const void* plain, void* packed) const {
  check(parts_->plain_weight != nullptr, "oneDNN: no plain weight to pack for ", text());
  const auto pack = reorder(MemoryLayout(parts_->plain_weight.get()), weight_layout());
  check(pack != nullptr, "oneDNN: cannot pack the weight of ", text());
  std::vector<std::byte> scratch(pack->scratchpad_bytes());
  pack->run(plain, nullptr, nullptr, packed, {}, scratch.data());
}

void Primitive::run(const void* a, const void* b, const void* bias, void* c, std::span<const void* const> post_operands,
                    void* scratch) const {
  const Parts& parts = *parts_;
  check(post_operands.size() == parts.post_operands, "oneDNN: ", post_operands.size(), " post-op operands instead of ", parts.post_operands,
        " for ", text());
  const void* fixed[post_operand] = {a, b, bias, c, scratch};
  auto pack = parts.packs.take();
  if (!pack) pack = parts.new_pack();
  for (size_t i = 0; i < parts.arguments.size(); ++i) {
    const size_t source = parts.arguments[i].source;
    const void* data = source < post_operand ? fixed[source] : post_operands[source - post_operand];
    check(data != nullptr, "oneDNN: null argument ", parts.arguments[i].id, " for ", text());
    require(library().memory_set_data_handle(pack->args[i].memory, const_cast<void*>(data)), "binding", text());
  }
  const OneThread alone(parts.is_small);
  require(library().primitive_execute(parts.primitive.get(), stream_of_this_thread(), int(pack->args.size()), pack->args.data()), "running",
          text());
  parts.packs.give(std::move(pack));
}

// ---- availability -----------------------------------------------------------------------------------------------------

void set_onednn_path(std::string path) {
  std::lock_guard lock(configured_path().mutex);
  configured_path().path = std::move(path);
}

bool available() { return library().unavailable_why.empty(); }

std::string unavailable_why() { return library().unavailable_why; }

std::string version() {
  if (!available()) return "";
  const auto* v = library().version();
  return cat(v->major, ".", v->minor, ".", v->patch);
}

}  // namespace broach::cpu::onednn

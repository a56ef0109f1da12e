// Matmul, convolution and layout conversion by oneDNN 3.x, opened at run time.
//
// A description (MatmulDesc, ConvDesc) becomes an immutable Primitive, which any number of threads may run at once. The
// library is reached only through a table of functions looked up in the file that was opened: libtorch_cpu.so carries a
// oneDNN of its own, of another version, and no symbol of that one is ever used. Without the headers no_onednn.cpp takes this
// module's place, and `available()` is false.
//
// A Primitive uses at most the number of OpenMP threads that was in force where it was created, and fewer where fewer are in
// force at the call; results are right either way. Create it again after raising the number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

struct dnnl_memory_desc;

namespace broach::cpu::onednn {

// The file to open: $BROACH_ONEDNN_LIBRARY alone if it is set (so that "off" switches oneDNN off), else the path given here,
// else "libdnnl.so.3" by the loader's rules. It is opened on first use; a path set after that has no effect.
void set_onednn_path(std::string path);

bool available();               // opened, of major version 3, with every function that is needed
std::string version();          // "3.2.0", or "" when not available
std::string unavailable_why();  // "" when available

enum class DType : uint8_t { f32, bf16, f16, s32, s8, u8 };

// What f32 inputs may be rounded to inside a primitive. `bf16` is torch.set_float32_matmul_precision("medium").
enum class MathMode : uint8_t { strict, bf16, f16, tf32, any };

// How a tensor lies in memory, blocked layouts included: a value, comparable and hashable. Default: no layout.
class MemoryLayout {
 public:
  MemoryLayout() = default;
  explicit MemoryLayout(const dnnl_memory_desc* copied);

  explicit operator bool() const { return desc_ != nullptr; }
  bool operator==(const MemoryLayout& other) const;
  size_t hash() const;
  size_t bytes() const;
  std::string text() const;                             // such as "f32[4,64,56,56]:(200704,50176,896,16)/16b"
  std::optional<std::vector<int64_t>> strides() const;  // in elements; nothing when the layout is blocked or padded
  // Whether this is a matrix of bf16 as blocks of `width` columns, each of pairs of rows whose elements of one column lie side by side,
  // [columns / width][rows / 32][16][width][2], padded with zeros. Given by position: its dims of rows and columns; the others are 1.
  bool lies_in_pairs(size_t rows, size_t columns, int64_t width) const;
  const dnnl_memory_desc* desc() const { return desc_.get(); }

 private:
  std::shared_ptr<const dnnl_memory_desc> desc_;
};

// A tensor that a primitive reads or writes.
struct Operand {
  std::vector<int64_t> dims = {};
  DType dtype = DType::f32;
  std::vector<int64_t> strides = {};  // in elements, >= 0; empty: dense row-major; a dim of size 1 may have any stride
  bool any = false;                   // oneDNN chooses the layout; for a weight, the strides are then what pack_weight reads
  MemoryLayout layout = {};           // when set, it replaces all of the above; of a weight, pack_weight reads dims and strides
};

// The layout of dims and strides as they stand; none when oneDNN cannot express it (overlapping elements).
MemoryLayout strided_layout(const Operand& plain);

// A packed layout for a matmul's weight in blocks of 16, 32, 48 or 64 columns, padded to whole blocks; none for other numbers.
MemoryLayout matmul_weight_layout(const Operand& plain, int64_t columns);

// Applied to the result in order, in f32. x is the value so far.
struct PostOp {
  enum Kind : uint8_t {
    relu,  // x > 0 ? x : alpha * x
    gelu_tanh,
    gelu_erf,
    swish,  // x * sigmoid(alpha * x); silu is alpha = 1
    tanh,
    sigmoid,
    linear,       // alpha * x + beta
    clip,         // min(max(x, alpha), beta)
    elu,          // x > 0 ? x : alpha * (exp(x) - 1)
    hardswish,    // x * min(max(alpha * x + beta, 0), 1); torch's is alpha = 1/6, beta = 1/2
    hardsigmoid,  // min(max(alpha * x + beta, 0), 1)
    softplus,     // log(1 + exp(alpha * x)) / alpha
    mish,
    exp,
    log,
    abs,
    square,
    sqrt,
    pow,    // alpha * x ^ beta
    round,  // to nearest, ties to even
    sum,    // x + alpha * (what the destination held before)
    add,    // from here on: x (op) operand
    sub,
    mul,
    div,
    max,
    min,
  };
  Kind kind;
  float alpha = 0, beta = 0;
  Operand operand = {};  // rank of the destination; a dim of size 1, or of stride 0, is broadcast

  bool binary() const { return kind >= add; }
};

// oneDNN says broadcast by a dim of size 1, PyTorch's expand by a stride of 0. Applies to the first `count` dims.
inline Operand unexpanded(Operand t, size_t count) {
  for (size_t d = 0; d < count && d < t.strides.size(); ++d)
    if (t.strides[d] == 0) t.dims[d] = 1;
  return t;
}

// c[..., M, N] = post(a[..., M, K] * b[..., K, N] + bias). Batch dims of a and b of size 1, or of stride 0, are broadcast.
struct MatmulDesc {
  Operand a, b, c;
  std::optional<Operand> bias = {};  // rank of c, dims of c or 1
  std::vector<PostOp> post = {};
  MathMode math = MathMode::strict;
};

// Sizes per spatial dim, outermost first. With i the source, k the kernel and o the destination size:
//   convolution  o = (i + pad_l + pad_r - ((k - 1) * (dilation + 1) + 1)) / stride + 1
//   transposed   o = (i - 1) * stride + (k - 1) * (dilation + 1) + 1 - pad_l - pad_r   (torch's output_padding lowers pad_r)
struct ConvDesc {
  Operand src;                       // N, C, spatial...
  Operand weight;                    // [G,] O/G, I/G, kernel...; transposed too, where torch stores I before O/G: say so by the strides
  Operand dst;                       // N, O, spatial...
  std::optional<Operand> bias = {};  // O
  std::vector<int64_t> strides, dilations, pad_l, pad_r;  // dilation 0 is a dense kernel (torch's dilation - 1)
  bool transposed = false;
  // The gradient of the weight instead: `dst` is given, with the gradient of the result, and `weight` computed. No bias, no post.
  bool to_weight = false;
  std::vector<PostOp> post = {};
  MathMode math = MathMode::strict;
};

class Primitive {
 public:
  // Null when oneDNN is not available or does not implement the description, empty tensors included. Throws Error for a
  // description that no implementation could make sense of.
  static std::shared_ptr<const Primitive> create(const MatmulDesc& desc);
  static std::shared_ptr<const Primitive> create(const ConvDesc& desc);
  // Copies a tensor between layouts and dtypes: run(from, nullptr, nullptr, to, {}, scratch).
  static std::shared_ptr<const Primitive> reorder(const MemoryLayout& from, const MemoryLayout& to);
  ~Primitive();
  Primitive(const Primitive&) = delete;
  Primitive& operator=(const Primitive&) = delete;

  // The layouts in effect, those chosen by oneDNN included. To a weight, the second operand (`weight_layout`) is the gradient of the
  // result, and what is computed (`dst_layout`) that of the weight.
  MemoryLayout src_layout() const;
  MemoryLayout weight_layout() const;
  MemoryLayout dst_layout() const;
  MemoryLayout post_layout(size_t post_index) const;  // of a binary post-op
  size_t scratchpad_bytes() const;                    // 640 or more for most matmuls; 0 for some convolutions
  size_t packed_weight_bytes() const { return weight_layout().bytes(); }
  size_t src_bytes() const { return src_layout().bytes(); }
  size_t dst_bytes() const { return dst_layout().bytes(); }

  std::string implementation() const;  // such as "brg:avx512_core"
  const std::string& text() const;     // the op and its operands, as in error messages
  // oneDNN 3.2 has only its plain loops for this, hundreds of times slower than its kernels: better not used. So it is for
  // - matmul: a bias other than {1,..,N}; a binary operand of {M,1} (but {1,M,1} beside a c of rank 3 has a kernel), {B,M,1},
  //   {B,1,1}, {1,M,N} with B > 1, {1,1,M,N}, {1,H,M,N}; a column-major destination; a source with no dim of stride 1;
  // - convolution: a binary operand in N, C, H, W strides, f32 (channels-last has a kernel).
  // - transposed convolution: of groups or large kernels, in most layouts.
  bool is_reference() const;
  bool is_unfolded() const;  // a convolution by way of a matrix of windows, in plain layouts: several times slower than its kernels

  // From the strides of the description to weight_layout().
  void pack_weight(const void* plain, void* packed) const;

  // a is the source and b the weight, or gradient. `post_operands` has one pointer per binary post-op, in order. `scratch` has at least
  // scratchpad_bytes() and belongs to this call until it returns; null if that is 0. Thread-safe.
  void run(const void* a, const void* b, const void* bias, void* c, std::span<const void* const> post_operands, void* scratch) const;

 private:
  struct Parts;
  friend struct Builder;
  explicit Primitive(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace broach::cpu::onednn

template <>
struct std::hash<broach::cpu::onednn::MemoryLayout> {
  size_t operator()(const broach::cpu::onednn::MemoryLayout& layout) const { return layout.hash(); }
};

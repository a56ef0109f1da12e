#include "target/cuda/routine.h"

#include <algorithm>

#include "support/error.h"
#include "target/cuda/code.h"

namespace broach::cuda {

namespace {

constexpr size_t kMostDims = 8;

// The same structure as in the source below.
struct Copy {
  int rank;
  int64_t elements, sizes[kMostDims], to[kMostDims], from[kMostDims];
};

constexpr const char* kSource = R"(
struct Bits16 { unsigned long long low, high; };
struct Copy { int rank; long long elements, sizes[8], to[8], from[8]; };
template <class T> __device__ __forceinline__ void copy(const Copy& c, T* to, const T* from) {
  long long i = blockIdx.x * 256ll + threadIdx.x, at_to = 0, at_from = 0;
  if (i >= c.elements) return;
  for (int d = c.rank - 1; d >= 0; --d) {
    const long long n = c.sizes[d], p = c.elements < (1ll << 31) ? static_cast<unsigned>(i) % static_cast<unsigned>(n) : i % n;
    i = c.elements < (1ll << 31) ? static_cast<unsigned>(i) / static_cast<unsigned>(n) : i / n;
    at_to += p * c.to[d], at_from += p * c.from[d];
  }
  to[at_to] = from[at_from];
}
#define COPY(T, bytes) extern "C" __global__ void copy_##bytes(Copy c, T* to, const T* from) { copy<T>(c, to, from); }
struct __align__(16) Words { unsigned at[4]; };
// Elements from an odd place on, in two words each: where rows begin at another place of 16 bytes than they go to.
template <int first> __device__ __forceinline__ Words shifted(const Words& low, const Words& high, bool half) {
  const unsigned w[9] = {low.at[0], low.at[1], low.at[2], low.at[3], high.at[0], high.at[1], high.at[2], high.at[3], 0};
  Words out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.at[i] = half ? __funnelshift_r(w[first + i], w[first + i + 1], 16) : w[first + i];
  return out;
}
template <int first> __device__ __forceinline__ void copy_words(long long count, bool half, Words* to, const Words* from) {
  const long long begin = blockIdx.x * 512ll + threadIdx.x;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const long long at = begin + i * 256;
    if (at >= count) return;
    const Words low = from[at];
    to[at] = first == 0 && !half ? low : shifted<first>(low, from[at + 1], half);
  }
}
extern "C" __global__ void copy_rows(long long columns, long long to_stride, long long from_stride, unsigned short* to,
                                     const unsigned short* from) {
  to += blockIdx.y * to_stride, from += blockIdx.y * from_stride;
  const long long place = (8 - (reinterpret_cast<unsigned long long>(to) / 2) % 8) % 8, head = place < columns ? place : columns;
  const long long count = (columns - head) / 8;
  const unsigned apart = reinterpret_cast<unsigned long long>(from + head) / 2 % 8;
  Words* target = reinterpret_cast<Words*>(to + head);
  const Words* source = reinterpret_cast<const Words*>(from + head - apart);
  switch (apart / 2) {
    case 0: copy_words<0>(count, apart % 2, target, source); break;
    case 1: copy_words<1>(count, apart % 2, target, source); break;
    case 2: copy_words<2>(count, apart % 2, target, source); break;
    default: copy_words<3>(count, apart % 2, target, source);
  }
  const long long tail = head + count * 8 + threadIdx.x;
  if (blockIdx.x == 0 && threadIdx.x < head) to[threadIdx.x] = from[threadIdx.x];
  if (blockIdx.x == 0 && threadIdx.x < 8 && tail < columns) to[tail] = from[tail];
}
COPY(unsigned char, 1) COPY(unsigned short, 2) COPY(unsigned, 4) COPY(unsigned long long, 8) COPY(Bits16, 16)
)";

Function copying_function(const std::string& name, int device) {
  static auto* code = new WrittenCode(kSource);
  return code->function(name, architecture_of(device));
}

// Dimensions of one element are left out, and those that lie one behind the other on both sides are one.
Copy description(std::span<const int64_t> sizes, std::span<const int64_t> to, std::span<const int64_t> from) {
  Copy c{0, 1, {}, {}, {}};
  for (size_t d = 0; d < sizes.size(); ++d) {
    c.elements *= sizes[d];
    if (sizes[d] == 1) continue;
    const auto last = static_cast<size_t>(c.rank - 1);
    if (c.rank > 0 && c.to[last] == to[d] * sizes[d] && c.from[last] == from[d] * sizes[d]) {
      c.sizes[last] *= sizes[d], c.to[last] = to[d], c.from[last] = from[d];
      continue;
    }
    check(c.rank < static_cast<int>(kMostDims), "cuda: a copy of more than ", kMostDims, " dimensions");
    c.sizes[c.rank] = sizes[d], c.to[c.rank] = to[d], c.from[c.rank] = from[d];
    ++c.rank;
  }
  return c;
}

// The window of the result's memory is written; the rest of it too, unless it is the operand's own memory.
class Update : public CompiledRoutine {
 public:
  explicit Update(DType dtype) : bytes_(size_of(dtype)), name_(cat("copy_", bytes_)) { function_for(current_device()); }

  void run(const RoutineArgs& args, const RunContext& run) const override {
    const RoutineTensor &x = args.operands[0], &source = args.operands[1], &out = args.results[0];
    if (!out.data) return;
    enter_device(run.device.index);
    if (x.data != out.data) copy(x.data, x.strides, out.data, out.strides, out.sizes, run);
    int64_t start = 0;
    for (size_t d = 0; d < out.sizes.size(); ++d) start += args.starts[d] * out.strides[d];
    copy(source.data, source.strides, static_cast<std::byte*>(out.data) + start * bytes_, out.strides, source.sizes, run);
  }

 private:
  Function function_for(int device) const { return copying_function(name_, device); }

  void copy(void* from, std::span<const int64_t> from_strides, void* to, std::span<const int64_t> to_strides,
            std::span<const int64_t> sizes, const RunContext& run) const {
    Copy c = description(sizes, to_strides, from_strides);
    if (c.elements == 0) return;
    void* parameters[] = {&c, &to, &from};
    const Driver& driver = Driver::get();
    driver.check(driver.launch(function_for(run.device.index), static_cast<unsigned>((c.elements + 255) / 256), 1, 1, 256, 1, 1, 0,
                               static_cast<Stream>(run.queue), parameters, nullptr),
                 "launching a copy");
  }

  int64_t bytes_;
  std::string name_;
};

}  // namespace

void copy_rows(void* to, const void* from, const Rows& r, const RunContext& run) {
  constexpr int64_t kColumns = 4096, kMostRows = 65535, kBytes = 2;  // of a block, of a launch, of an element
  const Function function = copying_function("copy_rows", run.device.index);
  const Driver& driver = Driver::get();
  for (int64_t first = 0; first < r.rows; first += kMostRows) {
    int64_t columns = r.columns, to_stride = r.to_stride, from_stride = r.from_stride;
    void* to_row = static_cast<std::byte*>(to) + first * to_stride * kBytes;
    const void* from_row = static_cast<const std::byte*>(from) + first * from_stride * kBytes;
    void* parameters[] = {&columns, &to_stride, &from_stride, &to_row, &from_row};
    driver.check(driver.launch(function, static_cast<unsigned>((columns + kColumns - 1) / kColumns),
                               static_cast<unsigned>(std::min(kMostRows, r.rows - first)), 1, 256, 1, 1, 0, static_cast<Stream>(run.queue),
                               parameters, nullptr),
                 "launching a copy of rows");
  }
}

bool has_routine(Op op, DType dtype) {
  return op == Op::update ? dtype != DType::opaque
                          : (op == Op::sum_rows || op == Op::add_rows) && is_floating(dtype) && !is_stored_only(dtype);
}

std::shared_ptr<const CompiledRoutine> make_routine(const Operation& operation) {
  if (operation.op == Op::sum_rows || operation.op == Op::add_rows) return make_sum_rows(operation);
  const Type& x = operation.operands[0];
  if (!has_routine(operation.op, x.dtype) || x.rank() == 0) return nullptr;
  return std::make_shared<Update>(x.dtype);
}

}  // namespace broach::cuda

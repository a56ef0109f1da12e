// Sums of rows by an index: the gradient of an embedding, without atomics on its elements and without sorting. A first kernel finds how often
// and where first each row is named. Then a block makes each row: of zeros, or from the positions behind the first, until it has met all;
// and adds it to what the row begins with, if there is such a thing.
#include <algorithm>
#include <bit>

#include "support/error.h"
#include "target/cuda/code.h"
#include "target/cuda/prelude.h"
#include "target/cuda/routine.h"

namespace broach::cuda {

namespace {

constexpr unsigned kMostThreads = 256;

// The same structures as in the source below.
struct Strides {
  int64_t row, column;
};
struct Start {
  void* data = nullptr;
  Strides by{};
  int bits = 0;
  bool is_same = false, is_brain = false;
};

constexpr const char* kSource = R"(
struct BF16 { typedef unsigned short S; typedef float C; FN C wide(S x) { return from_bf16(x); } FN S narrow(C x) { return to_bf16(x); } };
struct F16 { typedef unsigned short S; typedef float C; FN C wide(S x) { return from_f16(x); } FN S narrow(C x) { return to_f16(x); } };
struct F32 { typedef float S; typedef float C; FN C wide(S x) { return x; } FN S narrow(C x) { return x; } };
struct F64 { typedef double S; typedef double C; FN C wide(S x) { return x; } FN S narrow(C x) { return x; } };
// Of each row: how often it is named, and behind these counts where first.
extern "C" __global__ void begin_rows(int rows, int* table) {
  const int row = blockIdx.x * 256 + threadIdx.x;
  if (row < rows) table[row] = 0, table[rows + row] = 0x7fffffff;
}
template <class I> FN void find_rows(int n, int rows, i64 stride, const I* index, int* table) {
  const int p = blockIdx.x * 256 + threadIdx.x;
  if (p >= n) return;
  const i64 named = static_cast<i64>(index[p * stride]);
  const int row = static_cast<int>(named == -1 ? -1 : checked(named, rows, true, "sum_rows"));
  table[2 * rows + p] = row;
  if (row >= 0) atomicAdd(table + row, 1), atomicMin(table + rows + row, p);
}
extern "C" __global__ void find_rows_8(int n, int rows, i64 stride, const i64* index, int* table) { find_rows(n, rows, stride, index, table); }
extern "C" __global__ void find_rows_4(int n, int rows, i64 stride, const int* index, int* table) { find_rows(n, rows, stride, index, table); }
// The positions of this row among the next ones, one for each thread, in their order.
FN int find_here(int row, int from, int n, const int* at, int* here, int* of_warp) {
  const int p = from + threadIdx.x, warp = threadIdx.x / 32;
  const bool is_hit = p < n && at[p] == row;
  const unsigned hits = __ballot_sync(~0u, is_hit);
  if (threadIdx.x % 32 == 0) of_warp[warp] = __popc(hits);
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) before += w < warp ? of_warp[w] : 0, all += of_warp[w];
  if (is_hit) here[before + __popc(hits & ((1u << threadIdx.x % 32) - 1))] = p;
  __syncthreads();
  return all;
}
struct Strides { i64 row, column; };  // with columns apart only where N is 1
struct Start { const void* data; Strides by; int bits; bool same, brain; };  // same: of the result's type, and in pieces as it
template <class E> FN typename E::C number_at(const Start& start, i64 at) {
  if (start.bits == 64) return static_cast<typename E::C>(static_cast<const double*>(start.data)[at]);
  if (start.bits == 32) return static_cast<typename E::C>(static_cast<const float*>(start.data)[at]);
  const unsigned short bits = static_cast<const unsigned short*>(start.data)[at];
  return start.brain ? from_bf16(bits) : from_f16(bits);
}
template <class E, int N>
FN void make_rows(int n, int rows, i64 width, Strides to, Strides by, Start start, typename E::S* out, const typename E::S* source,
                  const int* table) {
  __shared__ int here[256], of_warp[8];
  const int row = blockIdx.x, count = table[row];
  for (i64 begin = 0; begin < width; begin += blockDim.x * N) {
    const i64 column = begin + threadIdx.x * N;
    typename E::C sums[N] = {};
    for (int left = count, from = table[rows + row]; left > 0; from += blockDim.x) {
      const int found = find_here(row, from, n, table + 2 * rows, here, of_warp);
      if (column < width) {
#pragma unroll 8
        for (int i = 0; i < found; ++i) {
          const Row<typename E::S, N> x = load_row<N>(source + here[i] * by.row + column * by.column);
#pragma unroll
          for (int j = 0; j < N; ++j) sums[j] += E::wide(x.x[j]);
        }
      }
      left -= found;
      __syncthreads();
    }
    if (column >= width) continue;
    Row<typename E::S, N> result;
#pragma unroll
    for (int j = 0; j < N; ++j) result.x[j] = E::narrow(sums[j]);
    if (start.data) {
      const i64 at = row * start.by.row + column * start.by.column;
      Row<typename E::S, N> first;
      if (start.same) first = load_row<N>(static_cast<const typename E::S*>(start.data) + at);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const typename E::C x = start.same ? E::wide(first.x[j]) : number_at<E>(start, at + j * start.by.column);
        result.x[j] = E::narrow(x + E::wide(result.x[j]));
      }
    }
    store_row(out + row * to.row + column * to.column, result);
  }
}
#define ROWS(E, N) extern "C" __global__ void __launch_bounds__(256) make_rows_##E##_##N(int n, int rows, i64 width, Strides to, Strides by, \
  Start start, E::S* out, const E::S* source, const int* table) { make_rows<E, N>(n, rows, width, to, by, start, out, source, table); }
ROWS(BF16, 8) ROWS(BF16, 1) ROWS(F16, 8) ROWS(F16, 1) ROWS(F32, 4) ROWS(F32, 1) ROWS(F64, 2) ROWS(F64, 1)
)";

Function function_for(const std::string& name, int device) {
  static auto* code = new WrittenCode(sum_rows_source());
  return code->function(name, architecture_of(device));
}

class SumRows : public CompiledRoutine {
 public:
  SumRows(DType dtype, bool has_start) : bytes_(size_of(dtype)), has_start_(has_start) {
    name_ = dtype == DType::bf16 ? "BF16" : dtype == DType::f16 ? "F16" : dtype == DType::f32 ? "F32" : "F64";
    function_for("begin_rows", current_device());
  }

  void run(const RoutineArgs& args, const RunContext& run) const override {
    const RoutineTensor &source = args.operands[has_start_ ? 2 : 0], &index = args.operands[1], &out = args.results[0];
    int64_t n = index.sizes[0], rows = out.sizes[0], width = out.sizes[1];
    if (!out.data || rows == 0 || width == 0) return;
    check(std::max(n, rows) < (int64_t{1} << 30), "cuda: sums of more than 2^30 rows");
    enter_device(run.device.index);
    const MemoryLease table(*run.memory, (2 * rows + n) * static_cast<int64_t>(sizeof(int)), run.queue);
    void* at = table.data();
    int n_int = static_cast<int>(n), rows_int = static_cast<int>(rows);
    void* begin[] = {&rows_int, &at};
    launch("begin_rows", rows, 256, begin, run);
    int64_t stride = index.strides[0];
    void* indices = index.data;
    void* find[] = {&n_int, &rows_int, &stride, &indices, &at};
    if (n > 0) launch(index.dtype == DType::i64 ? "find_rows_8" : "find_rows_4", n, 256, find, run);
    Strides to{out.strides[0], out.strides[1]}, by{source.strides[0], source.strides[1]};
    void *sums = out.data, *from = source.data;
    const int64_t lanes = is_odd(source) || is_odd(out) ? 1 : 16 / bytes_;
    Start start = has_start_ ? start_of(args.operands[0], out.dtype, lanes) : Start{};
    void* make[] = {&n_int, &rows_int, &width, &to, &by, &start, &sums, &from, &at};
    const int64_t threads = std::min<int64_t>(kMostThreads, ((width + lanes - 1) / lanes + 31) / 32 * 32);
    launch(cat("make_rows_", name_, "_", lanes), rows * threads, static_cast<unsigned>(threads), make, run);
  }

 private:
  // Whether its elements are not those of whole pieces of 16 bytes.
  bool is_odd(const RoutineTensor& t) const {
    const int64_t lanes = 16 / bytes_;
    return t.sizes[1] % lanes != 0 || t.strides[1] != 1 || t.strides[0] % lanes != 0 || std::bit_cast<uintptr_t>(t.data) % 16 != 0;
  }

  Start start_of(const RoutineTensor& x, DType result, int64_t lanes) const {
    const bool is_same = x.dtype == result && (lanes == 1 || !is_odd(x));
    return {x.data, {x.strides[0], x.strides[1]}, static_cast<int>(8 * size_of(x.dtype)), is_same, x.dtype == DType::bf16};
  }

  static void launch(const std::string& name, int64_t points, unsigned threads, void** parameters, const RunContext& run) {
    const Driver& driver = Driver::get();
    driver.check(driver.launch(function_for(name, run.device.index), static_cast<unsigned>((points + threads - 1) / threads), 1, 1, threads,
                               1, 1, 0, static_cast<Stream>(run.queue), parameters, nullptr),
                 "launching sums of rows");
  }

  int64_t bytes_;
  bool has_start_;
  std::string name_;
};

}  // namespace

std::string sum_rows_source() { return cat(kPrelude, kSource); }

std::shared_ptr<const CompiledRoutine> make_sum_rows(const Operation& operation) {
  return std::make_shared<SumRows>(operation.results[0].dtype, operation.op == Op::add_rows);
}

}  // namespace broach::cuda

// Attention as a routine: heads and blocks of query rows are independent pieces of work.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "target/cpu/attention_pieces.h"
#include "target/cpu/routine.h"

namespace broach::cpu {

namespace {

struct Code {
  AttentionFn* forward;
  AttentionGradientFn* gradient;
};
Code best_code() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return {!__builtin_cpu_supports("avx512bf16") ? attention_avx512
            : may_use_amx()                       ? attention_amx
                                                  : attention_avx512_bf16,
            may_use_amx() ? attention_gradient_amx : attention_gradient_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {attention_avx2, attention_gradient_avx2};
  return {attention_sse, attention_gradient_sse};
}

const void* head_of(const RoutineTensor& t, int64_t batch, int64_t head) {
  return static_cast<const std::byte*>(t.data) + (batch * t.strides[0] + head * t.strides[1]) * size_of(t.dtype);
}

// Memory of the thread, for one `Use` at a time.
template <int Use>
float* aligned_floats(int64_t n) {
  thread_local std::vector<float> memory;
  if (memory.size() < static_cast<size_t>(n) + 16) memory.resize(static_cast<size_t>(n) + 16);
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});
}

// Of so many rows.
int workers_for(int64_t rows, int64_t operations, const Threads& threads) {
  const int count = is_worth_threads(rows, operations) ? threads.count() : 1;
  return is_worth_threads(rows, operations, count) ? count : 1;
}

bool attention(const RoutineArgs& args, const Threads& threads, float scale, bool causal) {
  static AttentionFn* const code = best_code().forward;
  const RoutineTensor &q = args.operands[0], &k = args.operands[1], &v = args.operands[2], &out = args.results[0], &lse = args.results[1];
  const RoutineTensor* mask = args.operands.size() > 3 ? &args.operands[3] : nullptr;
  AttentionRows all{};
  all.query_row = q.strides[2], all.query_col = q.strides[3];
  all.key_row = k.strides[2], all.key_col = k.strides[3];
  all.value_row = v.strides[2], all.value_col = v.strides[3];
  if (mask) all.mask_row = mask->strides[2], all.mask_col = mask->strides[3];
  all.result_row = out.strides[2], all.result_col = out.strides[3];
  all.keys = k.sizes[2], all.depth = q.sizes[3], all.value_depth = v.sizes[3];
  all.scale = scale;
  all.causal = causal;
  all.bf16 = q.dtype == DType::bf16;
  if (lse.data) all.logsumexp_row = lse.strides[2];
  const int64_t heads = q.sizes[1], all_heads = q.sizes[0] * heads, rows = q.sizes[2];
  all.head_rows = rows;
  const int64_t operations = rows * std::max<int64_t>(all.keys, 1) * (all.depth + all.value_depth);
  const int workers = workers_for(all_heads * rows, operations / std::max<int64_t>(rows, 1), threads);
  const bool on_tiles = all.bf16 && code == attention_amx;
  const AttentionPieces pieces =
      attention_pieces(all_heads, rows, on_tiles ? 16 : 6, on_tiles ? kAmxAttentionRows : kAttentionRows, workers);
  share(threads, workers, all_heads * pieces.blocks, !causal, [&](int64_t i) {
    const AttentionPiece piece = attention_piece(i, all_heads, pieces.blocks, causal);
    const int64_t batch = piece.head / heads, head = piece.head % heads;
    AttentionRows a = all;
    a.scratch = aligned_floats<0>(attention_scratch(a.depth, a.value_depth));
    a.query = head_of(q, batch, head), a.key = head_of(k, batch, head), a.value = head_of(v, batch, head);
    a.mask = mask ? static_cast<const float*>(head_of(*mask, batch, head)) : nullptr;
    a.result = out.data ? const_cast<void*>(head_of(out, batch, head)) : nullptr;
    a.logsumexp = lse.data ? static_cast<float*>(const_cast<void*>(head_of(lse, batch, head))) : nullptr;
    a.first = piece.block * pieces.rows;
    a.last = std::min(rows, a.first + pieces.rows);
    code(a);
  });
  return true;
}

AttentionMatrix matrix_of(const RoutineTensor& t, int64_t batch, int64_t head) {
  return {t.data ? head_of(t, batch, head) : nullptr, t.strides[2], t.strides[3]};
}

AttentionGradient gradient_of_head(const RoutineArgs& args, int64_t batch, int64_t head) {
  const RoutineTensor &q = args.operands[0], &lse = args.operands[5];
  const RoutineTensor* mask = args.operands.size() > 6 ? &args.operands[6] : nullptr;
  auto operand = [&](size_t i) { return matrix_of(args.operands[i], batch, head); };
  auto result = [&](size_t i) { return matrix_of(args.results[i], batch, head); };
  AttentionGradient a{};
  a.query = operand(0), a.key = operand(1), a.value = operand(2), a.gradient = operand(3), a.result = operand(4);
  a.query_gradient = result(0), a.key_gradient = result(1), a.value_gradient = result(2);
  a.logsumexp = static_cast<const float*>(head_of(lse, batch, head)), a.logsumexp_row = lse.strides[2];
  if (mask) a.mask = static_cast<const float*>(head_of(*mask, batch, head)), a.mask_row = mask->strides[2], a.mask_col = mask->strides[3];
  a.rows = q.sizes[2], a.depth = q.sizes[3], a.value_depth = args.operands[2].sizes[3];
  a.bf16 = q.dtype == DType::bf16;
  return a;
}

// Pieces of work are heads, and parts of their keys where there are few heads: each part has sums of its own for the gradient of the
// queries. How many parts does not depend on the threads, so that results do not.
bool attention_gradient(const RoutineArgs& args, const Threads& threads, float scale, bool causal) {
  constexpr int64_t kPieces = 32;
  static AttentionGradientFn* const code = best_code().gradient;
  const RoutineTensor &q = args.operands[0], &k = args.operands[1];
  const int64_t heads = q.sizes[1], all = q.sizes[0] * heads, rows = q.sizes[2], keys = k.sizes[2], depth = q.sizes[3];
  if (all == 0) return true;
  const int64_t blocks = std::max<int64_t>(1, (keys + kGradientKeys - 1) / kGradientKeys),
                parts = std::clamp<int64_t>(kPieces / all, 1, blocks);
  const int64_t part = (blocks + parts - 1) / parts * kGradientKeys, sums = attention_query_sums(rows, depth);
  float* const shared = parts > 1 ? aligned_floats<1>(all * parts * sums) : nullptr;
  auto head_for = [&](int64_t i) {
    AttentionGradient a = gradient_of_head(args, i / heads, i % heads);
    a.scale = scale, a.causal = causal;
    return a;
  };
  const int64_t value_depth = args.operands[2].sizes[3];
  const int workers = workers_for(all * rows, keys * (3 * depth + 2 * value_depth), threads);
  share(threads, workers, all * parts, !causal, [&](int64_t i) {
    const int64_t of = i % all, at = i / all;  // in causal attention the first keys are seen by the most rows
    const int64_t scratch = attention_gradient_scratch(rows, depth, value_depth);
    float* const memory = aligned_floats<0>(scratch + sums);
    AttentionGradient a = head_for(of);
    a.scratch = memory, a.query_sums = shared ? shared + (of * parts + at) * sums : memory + scratch;
    a.first_key = std::min(keys, at * part), a.last_key = std::min(keys, a.first_key + part);
    if (shared) a.query_gradient.data = nullptr;
    std::fill_n(a.query_sums, sums, 0.0f);
    code(a);
  });
  if (!shared) return true;
  share(threads, workers, all, true, [&](int64_t i) {
    AttentionGradient a = head_for(i);
    a.query_sums = shared + i * parts * sums;
    for (int64_t p = 1; p < parts; ++p)
      for (int64_t j = 0; j < sums; ++j) a.query_sums[j] += a.query_sums[p * sums + j];
    code(a);  // of no keys: writes what was added up
  });
  return true;
}

}  // namespace

bool may_use_amx() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (kBf16 | kTile)) != (kBf16 | kTile)) return false;
  // Linux must be asked, for the registers are large.
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

RoutineFunction make_attention(const Operation& operation) {
  if (operation.operands[0].dtype != DType::f32 && operation.operands[0].dtype != DType::bf16) return {};
  const auto scale = static_cast<float>(as_double(operation.get<Scalar>(Attr::scale)));
  const bool causal = operation.integer(Attr::causal) != 0;
  auto* const run = operation.op == Op::attention ? attention : attention_gradient;
  return [=](const RoutineArgs& args, const Threads& threads) { return run(args, threads, scale, causal); };
}

}  // namespace broach::cpu

// Attention as a routine: heads and blocks of query rows are independent pieces of work.
#include <algorithm>
#include <vector>

#include "target/cpu/attention.h"
#include "target/cpu/routine.h"

namespace broach::cpu {

namespace {

AttentionFn* best_code() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return __builtin_cpu_supports("avx512bf16") ? attention_avx512_bf16 : attention_avx512;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? attention_avx2 : attention_sse;
}

const void* head_of(const RoutineTensor& t, int64_t batch, int64_t head) {
  return static_cast<const std::byte*>(t.data) + (batch * t.strides[0] + head * t.strides[1]) * size_of(t.dtype);
}

float* aligned_floats(int64_t n) {
  thread_local std::vector<float> memory;
  if (memory.size() < static_cast<size_t>(n) + 16) memory.resize(static_cast<size_t>(n) + 16);
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});
}

bool attention(const RoutineArgs& args, const Threads& threads, float scale, bool causal) {
  static AttentionFn* const code = best_code();
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
  const int64_t heads = q.sizes[1], rows = q.sizes[2], blocks = (rows + kAttentionRows - 1) / kAttentionRows;
  const int64_t work = std::min(rows, kAttentionRows) * std::max<int64_t>(all.keys, 1) * (all.depth + all.value_depth);
  threads.parallel_for(q.sizes[0] * heads * blocks, std::max<int64_t>(1, 400'000 / std::max<int64_t>(work / 16, 1)),
                       [&](int64_t begin, int64_t end) {
                         AttentionRows a = all;
                         a.scratch = aligned_floats(attention_scratch(a.depth, a.value_depth));
                         for (int64_t i = begin; i < end; ++i) {
                           const int64_t batch = i / blocks / heads, head = i / blocks % heads;
                           a.query = head_of(q, batch, head), a.key = head_of(k, batch, head), a.value = head_of(v, batch, head);
                           a.mask = mask ? static_cast<const float*>(head_of(*mask, batch, head)) : nullptr;
                           a.result = out.data ? const_cast<void*>(head_of(out, batch, head)) : nullptr;
                           a.logsumexp = lse.data ? static_cast<float*>(const_cast<void*>(head_of(lse, batch, head))) : nullptr;
                           a.first = i % blocks * kAttentionRows;
                           a.last = std::min(rows, a.first + kAttentionRows);
                           code(a);
                         }
                       });
  return true;
}

}  // namespace

RoutineFunction make_attention(const Operation& operation) {
  if (operation.operands[0].dtype != DType::f32 && operation.operands[0].dtype != DType::bf16) return {};
  const auto scale = static_cast<float>(as_double(operation.get<Scalar>(Attr::scale)));
  const bool causal = operation.integer(Attr::causal) != 0;
  return [=](const RoutineArgs& args, const Threads& threads) { return attention(args, threads, scale, causal); };
}

}  // namespace broach::cpu

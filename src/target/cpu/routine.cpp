#include "target/cpu/routine.h"

#include <algorithm>

#include "support/error.h"

namespace broach::cpu {

namespace {

class Routine : public CompiledRoutine {
 public:
  Routine(RoutineFunction f, bool works_in_place) : run_(std::move(f)), works_in_place_(works_in_place) {}
  void run(const RoutineArgs& args, const RunContext& context) const override {
    if (!run_(args, *context.threads)) context.errors->set(context.step);
  }
  bool works_in_place() const override { return works_in_place_; }

 private:
  RoutineFunction run_;
  bool works_in_place_;
};

RoutineFunction function_of(const Operation& operation) {
  switch (operation.op) {
    case Op::scan_sum:
    case Op::scan_prod:
    case Op::scan_logsumexp:
    case Op::scan_max:
    case Op::scan_min: return make_scan(operation);
    case Op::sort:
    case Op::topk:
    case Op::kth:
    case Op::median:
    case Op::mode: return make_order(operation);
    case Op::search: return make_search(operation);
    case Op::update: return make_update(operation);
    case Op::sum_rows:
    case Op::add_rows: return make_sum_rows(operation);
    case Op::attention:
    case Op::attention_gradient: return make_attention(operation);
    default: return make_scatter(operation);
  }
}

// A dimension that lines are laid out in.
struct Across {
  int64_t size;
  int64_t strides[kMostLines];
};

// Those of tensors[0] but `dim`, the smallest strides last, joined where lines follow one another at one distance.
std::vector<Across> dimensions_across(std::span<const RoutineTensor* const> tensors, size_t dim) {
  const RoutineTensor& first = *tensors[0];
  std::vector<Across> dims;
  for (size_t d = 0; d < first.sizes.size(); ++d) {
    if (d == dim || first.sizes[d] == 1) continue;
    Across& a = dims.emplace_back(Across{first.sizes[d], {}});
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (!tensors[t]) continue;
      const bool reduced = tensors[t]->strides.size() < first.sizes.size();
      a.strides[t] = tensors[t]->strides[reduced && d > dim ? d - 1 : d];
    }
  }
  std::stable_sort(dims.begin(), dims.end(), [](const Across& a, const Across& b) { return a.strides[0] > b.strides[0]; });
  for (size_t i = dims.size(); i-- > 1;) {
    Across &outer = dims[i - 1], &inner = dims[i];
    bool joins = true;
    for (size_t t = 0; t < tensors.size(); ++t) joins = joins && outer.strides[t] == inner.strides[t] * inner.size;
    if (!joins) continue;
    inner.size *= outer.size;
    outer = inner;
    dims.erase(dims.begin() + static_cast<int64_t>(i));
  }
  return dims;
}

}  // namespace

bool has_routine(Op op, DType dtype) {
  if (op == Op::attention || op == Op::attention_gradient) return dtype == DType::f32 || dtype == DType::bf16;
  if (op == Op::sum_rows || op == Op::add_rows) return is_floating(dtype);
  if (op == Op::update || op == Op::scatter) return size_of(dtype) <= 8;  // elements are moved as they are
  return !is_complex(dtype);
}

std::shared_ptr<const CompiledRoutine> make_routine(const Operation& operation) {
  RoutineFunction f = function_of(operation);
  return f ? std::make_shared<Routine>(std::move(f), operation.op == Op::add_rows) : nullptr;
}

void for_each_run(std::span<const RoutineTensor* const> tensors, size_t dim, int64_t work, const Threads& threads,
                  const std::function<void(const LineRun&)>& body) {
  constexpr int64_t kOperations = 12;  // as long as one that is not vectorised
  check(tensors.size() <= kMostLines, "more than ", kMostLines, " tensors in one walk");
  const std::vector<Across> dims = dimensions_across(tensors, dim);
  int64_t count = 1;
  for (const Across& a : dims) count *= a.size;
  LineRun all{};
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (!tensors[t]) continue;
    all.along[t] = tensors[t]->strides.size() < tensors[0]->strides.size() ? 0 : tensors[t]->strides[dim];
    all.across[t] = dims.empty() ? 0 : dims.back().strides[t];
  }
  threads.parallel_for(count, grain_for(count, kOperations * std::max<int64_t>(work, 1), threads.count()), [&](int64_t begin, int64_t end) {
    LineRun run = all;
    while (begin < end) {
      const int64_t inner = dims.empty() ? 1 : dims.back().size;
      int64_t rest = begin;
      std::fill(std::begin(run.offset), std::end(run.offset), 0);
      for (size_t d = dims.size(); d-- > 0; rest /= dims[d].size)
        for (size_t t = 0; t < tensors.size(); ++t) run.offset[t] += rest % dims[d].size * dims[d].strides[t];
      run.lines = std::min(inner - begin % inner, end - begin);
      body(run);
      begin += run.lines;
    }
  });
}

}  // namespace broach::cpu

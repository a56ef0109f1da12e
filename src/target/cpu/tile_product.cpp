#include "target/cpu/tile_product.h"

#include <algorithm>

#include "support/error.h"
#include "target/cpu/attention.h"
#include "target/cpu/epilogue.h"
#include "target/cpu/jit.h"
#include "target/cpu/scratch.h"
#include "target/cpu/tiles.h"

namespace broach::cpu {

namespace {

constexpr size_t kMostSides = 10;

// As a matrix, if it is one: what comes before the last two dimensions is one.
std::optional<onednn::Operand> matrix(const onednn::Operand& o) {
  const size_t rank = o.dims.size();
  if (rank < 2 || std::any_of(o.dims.begin(), o.dims.end() - 2, [](int64_t d) { return d != 1; })) return std::nullopt;
  onednn::Operand m{.dims = {o.dims[rank - 2], o.dims[rank - 1]}, .dtype = o.dtype, .strides = {o.strides[rank - 2], o.strides[rank - 1]}};
  for (size_t d = 0; d < 2; ++d)
    if (m.dims[d] == 1) m.strides[d] = 0;
  return m;
}

// Into how many parts rows and blocks of columns are divided among threads, so that these wait as little as possible for what they read.
// The weight is fetched ahead; rows are not, but those that a thread has computed before lie near it, if it computes the same ones now.
std::pair<int64_t, int64_t> grid_for(int64_t threads, int64_t rows, int64_t blocks, int64_t depth) {
  constexpr double kRow = 4;  // as many columns of the weight cost as much
  std::pair<int64_t, int64_t> best{1, 1};
  double least = 0;
  for (int64_t by_rows = 1; by_rows <= threads; ++by_rows) {
    const int64_t r = std::min(by_rows, (rows + kTileBlockRows - 1) / kTileBlockRows), c = std::min(threads / by_rows, blocks);
    const int64_t part = (rows + r - 1) / r, times = (part + tile_rows(depth) - 1) / tile_rows(depth);  // that the weight is read
    const double reads =
        kRow * static_cast<double>(part) + static_cast<double>(times * blocks * kTileBlockColumns) / static_cast<double>(c);
    const double cost = reads + 1e9 * static_cast<double>(threads - r * c);  // a thread without work costs more than any reading
    if (by_rows == 1 || cost < least) least = cost, best = {r, c};
  }
  return best;
}

}  // namespace

struct TileProduct::Run {
  const TileProduct& product;
  std::span<void* const> sides;
};

std::shared_ptr<const TileProduct> TileProduct::create(const onednn::MatmulDesc& desc, const onednn::MemoryLayout& layout,
                                                       const ContractionStep& step, const CompileSettings& settings) {
  constexpr int64_t kFewestRows = 17;  // fewer leave one of two tiles empty, and are bound by reading the weight
  const auto a = matrix(desc.a), c = matrix(desc.c), b = matrix(desc.b);
  if (!may_use_amx() || !a || !b || !c || a->dtype != onednn::DType::bf16 || b->dtype != onednn::DType::bf16) return nullptr;
  const bool is_conv = step.operation.op == Op::conv;
  const size_t rank = desc.b.dims.size();
  const bool is_packed_so =
      is_conv ? layout.lies_in_pairs(1, 0, kTileBlockColumns) : layout.lies_in_pairs(rank - 2, rank - 1, kTileBlockColumns);
  auto out = std::make_shared<TileProduct>();
  out->rows_ = a->dims[0], out->depth_ = a->dims[1], out->columns_ = c->dims[1], out->source_row_ = a->strides[0];
  if (out->rows_ < kFewestRows || out->depth_ % kTileDepth != 0 || a->strides[1] != 1 || out->source_row_ == 0 || c->strides[1] != 1 ||
      step.epilogue.size() + 2 > kMostSides || !is_packed_so)
    return nullptr;
  EpilogueForm form{.dims = {kTileBlockRows, kTileBlockColumns}, .product = {DType::f32, {kTileBlockRow, 1}}};
  auto add = [&](const onednn::Operand& o, DType t) {
    out->sides_.push_back({o.strides[0] * element_bytes(o.dtype), o.strides[1] * element_bytes(o.dtype) * kTileBlockColumns});
    return EpilogueForm::Side{t, o.strides};
  };
  out->biased_ = desc.bias.has_value();
  if (desc.bias) {
    const auto bias = matrix(*desc.bias);
    if (!bias || bias->strides[0] != 0) return nullptr;
    form.bias = add(*bias, step.bias->type.dtype);
  }
  for (size_t i = 0; i < step.epilogue.size(); ++i) {
    const Epilogue& e = step.epilogue[i];
    std::optional<EpilogueForm::Side> side;
    if (e.operand) {
      const auto operand = matrix(desc.post[i].operand);
      if (!operand) return nullptr;
      side = add(*operand, e.operand->type.dtype);
    }
    form.operations.push_back({e.op, side});
  }
  form.result = add(*c, step.result.type.dtype);
  out->whole_ = compile_epilogue(form, settings);
  if (const int64_t rest = out->columns_ % kTileBlockColumns) form.dims[1] = rest;
  out->last_ = compile_epilogue(form, settings);
  // A unit of work must be a row, so that less than a whole block can be asked for.
  if (units_of(*out->whole_) != kTileBlockRows || units_of(*out->last_) != kTileBlockRows) return nullptr;
  return out;
}

void TileProduct::finish(const void* run, int64_t row, int64_t n, int64_t block, const float* sums) {
  const auto& [product, sides] = *static_cast<const Run*>(run);
  void* buffers[kMostSides + 1];
  buffers[0] = const_cast<float*>(sums);
  for (size_t i = 0; i < sides.size(); ++i)
    buffers[i + 1] = static_cast<char*>(sides[i]) + row * product.sides_[i].row + block * product.sides_[i].column;
  const bool is_last = (block + 1) * kTileBlockColumns >= product.columns_;
  run_units(is_last ? *product.last_ : *product.whole_, buffers, 0, n);
}

void TileProduct::run(const void* source, const void* packed, void* bias, std::span<void* const> operands, void* result,
                      const Threads& threads) const {
  void* sides[kMostSides];
  size_t count = 0;
  if (biased_) sides[count++] = bias;
  for (void* o : operands) sides[count++] = o;
  sides[count++] = result;
  const Run run{*this, {sides, count}};
  const int64_t blocks = (columns_ + kTileBlockColumns - 1) / kTileBlockColumns;
  const int64_t row_blocks = (rows_ + kTileBlockRows - 1) / kTileBlockRows;
  const int64_t work = 2 * kTileBlockRows * kTileBlockColumns * depth_ / 25 + 1;  // a picosecond each, counted in 25
  const int64_t wanted = is_worth_threads(row_blocks * blocks, work, threads.count()) ? threads.count() : 1;
  const auto [by_rows, by_blocks] = grid_for(wanted, rows_, blocks, depth_);
  auto part = [&](int64_t i) {
    thread_local std::vector<char> memory;
    void* scratch = aligned_scratch(memory, sizeof(float) * static_cast<size_t>(tile_scratch(depth_)));
    const int64_t r = i / by_blocks, c = i % by_blocks;
    TileRows w{.rows = static_cast<const uint16_t*>(source),
               .row = source_row_,
               .count = rows_,
               .depth = depth_,
               .weight = packed,
               .first_row = row_blocks * r / by_rows * kTileBlockRows,
               .last_row = std::min(rows_, row_blocks * (r + 1) / by_rows * kTileBlockRows),
               .first_block = blocks * c / by_blocks,
               .last_block = blocks * (c + 1) / by_blocks,
               .scratch = static_cast<float*>(scratch),
               .finish = finish,
               .context = &run};
    multiply_amx(w);
  };
  if (by_rows * by_blocks == 1) return part(0);
  threads.parallel_for(by_rows * by_blocks, 1, [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) part(begin);
  });
}

}  // namespace broach::cpu

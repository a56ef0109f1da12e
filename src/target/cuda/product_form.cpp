#include "target/cuda/product_form.h"

#include <algorithm>
#include <functional>

namespace broach::cuda {

Window window(const Operand& o, std::span<const int64_t> symbols) {
  return {evaluated<Sizes>(o.type.shape, symbols), evaluated<Sizes>(o.place.strides, symbols), o.type.dtype};
}

bool has_fixed_sizes(const ContractionStep& step) {
  auto is_fixed = [](const Operand& o) {
    return std::ranges::all_of(o.type.shape, &SymInt::is_constant) && std::ranges::all_of(o.place.strides, &SymInt::is_constant);
  };
  return std::ranges::all_of(step.operands, is_fixed) && is_fixed(step.result) && (!step.bias || is_fixed(*step.bias)) &&
         std::ranges::all_of(step.epilogue, [&](const Epilogue& e) { return !e.operand || is_fixed(*e.operand); });
}

namespace {

// Whether dimensions d and d+1 are one in this window.
bool are_one(const Window& w, size_t d) {
  return w.sizes[d] == 1 || w.sizes[d + 1] == 1 || w.strides[d] == w.strides[d + 1] * w.sizes[d + 1];
}

void merge(Window& w, size_t d) {
  if (w.sizes[d + 1] != 1) w.strides[d] = w.strides[d + 1];
  w.sizes[d] *= w.sizes[d + 1];
  w.sizes.erase(w.sizes.begin() + static_cast<int64_t>(d) + 1);
  w.strides.erase(w.strides.begin() + static_cast<int64_t>(d) + 1);
}

void insert(Window& w, size_t at, int64_t size, int64_t stride) {
  w.sizes.insert(w.sizes.begin() + static_cast<int64_t>(at), size);
  w.strides.insert(w.strides.begin() + static_cast<int64_t>(at), stride);
}

// The last two dimensions.
std::optional<ColumnMajor> column_major(const Window& w) {
  const size_t r = w.sizes.size() - 2, c = r + 1;
  const int64_t rows = w.sizes[r], columns = w.sizes[c], down = w.strides[r], along = w.strides[c];
  if ((along == 1 || columns == 1) && (down >= columns || rows == 1)) return ColumnMajor{columns, rows, std::max(down, columns), 0, false};
  if ((down == 1 || rows == 1) && (along >= rows || columns == 1)) return ColumnMajor{rows, columns, std::max(along, rows), 0, true};
  return std::nullopt;
}

}  // namespace

ProductForm product_form(const ContractionStep& step, std::span<const int64_t> symbols) {
  const auto batch = static_cast<size_t>(step.operation.integer(Attr::batch));
  ProductForm f{window(step.operands[0], symbols), window(step.operands[1], symbols), window(step.result, symbols), {}, {}};
  if (step.bias) f.bias = window(*step.bias, symbols);
  for (const Epilogue& e : step.epilogue)
    if (e.operand) f.operands.push_back(window(*e.operand, symbols));
  std::vector<Window*> with_rows{&f.x, &f.result};
  for (Window& w : f.operands) with_rows.push_back(&w);
  if (f.bias) with_rows.push_back(&*f.bias);
  if (f.result.sizes.size() == batch + 1)  // a vector: one row
    for (Window* w : with_rows) insert(*w, batch, 1, 0);
  for (size_t d = batch; d + 2 < f.result.sizes.size();) {
    if (std::ranges::all_of(with_rows, [&](const Window* w) { return are_one(*w, d); })) {
      for (Window* w : with_rows) merge(*w, d);
    } else {
      insert(f.weight, d, f.result.sizes[d], 0);
      ++d;
    }
  }
  return f;
}

namespace {

// Batches: the largest dimension is the library's, the others are calls.
class Batches {
 public:
  Batches(const ProductForm& f, LibraryProduct& out) : f_(f), out_(out) {
    for (size_t d = 0; d + 2 < f.result.sizes.size(); ++d)
      if (f.result.sizes[d] > 1) dims_.push_back(d);
    join();
    if (!sizes_.empty()) {
      const size_t largest = static_cast<size_t>(std::ranges::max_element(sizes_) - sizes_.begin());
      out.batches = sizes_[largest];
      out.weight.batch_stride = strides_[largest].weight, out.x.batch_stride = strides_[largest].x;
      out.result.batch_stride = strides_[largest].result, out.added.batch_stride = strides_[largest].added;
      sizes_.erase(sizes_.begin() + static_cast<int64_t>(largest));
      strides_.erase(strides_.begin() + static_cast<int64_t>(largest));
    }
    walk(0, {0, 0, 0, 0});
  }

 private:
  using Start = LibraryProduct::Start;

  Start strides_at(size_t d) const {
    return {f_.weight.strides[d], f_.x.strides[d], f_.result.strides[d], out_.adds ? f_.operands[0].strides[d] : 0};
  }

  void join() {
    for (size_t d : dims_) {
      const Start s = strides_at(d);
      const int64_t n = f_.result.sizes[d];
      if (!sizes_.empty()) {
        const Start& o = strides_.back();
        if (o.weight == s.weight * n && o.x == s.x * n && o.result == s.result * n && o.added == s.added * n) {
          sizes_.back() *= n, strides_.back() = s;
          continue;
        }
      }
      sizes_.push_back(n), strides_.push_back(s);
    }
  }

  void walk(size_t d, Start at) {
    if (d == sizes_.size()) return out_.starts.push_back(at);
    for (int64_t i = 0; i < sizes_[d]; ++i) {
      const Start& s = strides_[d];
      walk(d + 1, {at.weight + i * s.weight, at.x + i * s.x, at.result + i * s.result, at.added + i * s.added});
    }
  }

  const ProductForm& f_;
  LibraryProduct& out_;
  std::vector<size_t> dims_;
  Sizes sizes_;
  std::vector<Start> strides_;
};

}  // namespace

std::optional<LibraryProduct> library_product(const ProductForm& f) {
  const auto x = column_major(f.x), weight = column_major(f.weight), result = column_major(f.result);
  if (!x || !weight || !result || result->transposed || f.x.sizes.back() == 0) return std::nullopt;
  if (f.bias && (f.bias->dtype != f.result.dtype || f.bias->strides.back() != 1 || f.bias->sizes.back() != f.result.sizes.back()))
    return std::nullopt;
  LibraryProduct out{*weight, *x, *result, *result, 1, {}, !f.operands.empty()};
  if (out.adds) {
    const auto added = column_major(f.operands[0]);
    if (f.operands.size() > 1 || !added || added->transposed || f.operands[0].dtype != f.result.dtype) return std::nullopt;
    if (f.operands[0].sizes != f.result.sizes) return std::nullopt;
    out.added = *added;
  }
  Batches batches(f, out);
  if (!out.adds) out.added = out.result;  // what is not read has to lie like the result
  constexpr size_t kMostCalls = 8;
  if (out.starts.size() > kMostCalls) return std::nullopt;
  return out;
}

}  // namespace broach::cuda

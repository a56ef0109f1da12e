#include "join.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "compat.h"
#include "externs.h"

namespace broach {

namespace {

using Sizes = std::vector<int64_t>;

std::optional<Sizes> known(const Shape& s) {
  Sizes out;
  for (const SymInt& e : s) {
    if (!e.is_constant()) return std::nullopt;
    out.push_back(e.constant());
  }
  return out;
}

// Of an operand, for each position of the dimensions before the joined one, so many bytes without a gap.
struct Piece {
  size_t buffer, bytes;
  int64_t start, step;  // bytes to the first position, and from one to the next
};

std::optional<Piece> piece_of(const Operand& o, size_t dim) {
  auto sizes = known(o.type.shape), strides = known(o.place.strides);
  if (!sizes || !strides || !o.place.offset.is_constant()) return std::nullopt;
  const int64_t item = size_of(o.type.dtype);
  int64_t inner = 1;
  for (size_t d = sizes->size(); d-- > dim; inner *= (*sizes)[d])
    if ((*sizes)[d] != 1 && (*strides)[d] != inner) return std::nullopt;
  Piece p{static_cast<size_t>(o.place.buffer), static_cast<size_t>(inner * item), o.place.offset.constant() * item, 0};
  int64_t outer = 1;
  for (size_t d = dim; d-- > 0; outer *= (*sizes)[d]) {
    if ((*sizes)[d] == 1) continue;
    if (outer == 1) p.step = (*strides)[d] * item;
    else if ((*strides)[d] * item != p.step * outer) return std::nullopt;
  }
  return p;
}

class Join : public ExternRunner {
 public:
  Join(const ExternStep& step, const Schedule& schedule, std::vector<Piece> pieces, size_t dim)
      : pieces_(std::move(pieces)), result_(step.results.at(0)) {
    const Type& type = schedule.buffers[static_cast<size_t>(result_)].type;
    dtype_ = scalar_type(type.dtype);
    sizes_ = *known(type.shape);
    for (size_t d = 0; d < dim; ++d) positions_ *= sizes_[d];
  }

  void run(Frame& frame) const override {
    at::Tensor result = at::detail::empty_cpu(sizes_, dtype_);
    auto* to = static_cast<std::byte*>(result.mutable_data_ptr());
    for (int64_t i = 0; i < positions_; ++i)
      for (const Piece& p : pieces_) {
        std::memcpy(to, static_cast<const std::byte*>(frame.data[p.buffer]) + p.start + i * p.step, p.bytes);
        to += p.bytes;
      }
    const auto buffer = static_cast<size_t>(result_);
    frame.data[buffer] = result.data_ptr();
    static_cast<ExternState*>(frame.host)->tensors[buffer] = std::move(result);
  }

  int64_t positions() const { return positions_; }

 private:
  std::vector<Piece> pieces_;
  int result_;
  at::ScalarType dtype_{};
  Sizes sizes_;
  int64_t positions_ = 1;
};

}  // namespace

std::unique_ptr<ExternRunner> make_join(const ExternStep& step, const Schedule& schedule) {
  constexpr int64_t kMostBytes = int64_t{1} << 18;  // beyond, several threads copy faster
  const ExternCall& call = step.operation.call();
  if (call.schema != "aten::cat" || step.results.size() != 1 || step.results[0] < 0) return nullptr;
  const auto* listed = std::get_if<ExternArg::Inputs>(&call.args.at(0).value);
  const auto* dim = std::get_if<SymInt>(&call.args.at(1).value);
  const Buffer& result = schedule.buffers[static_cast<size_t>(step.results[0])];
  const auto sizes = known(result.type.shape);
  if (result.type.device.kind != DeviceKind::cpu) return nullptr;
  if (!listed || listed->optional_elements || !dim || !dim->is_constant() || !sizes || result.type.dtype == DType::opaque ||
      !(result.strides == contiguous_strides(result.type.shape)))
    return nullptr;
  const auto rank = static_cast<int64_t>(sizes->size()), along = dim->constant() < 0 ? dim->constant() + rank : dim->constant();
  int64_t bytes = size_of(result.type.dtype);
  for (int64_t n : *sizes) bytes *= n;
  if (bytes > kMostBytes) return nullptr;
  std::vector<Piece> pieces;
  size_t sum = 0;
  for (int64_t i : listed->indices) {
    const Operand& o = step.operands[static_cast<size_t>(i)];
    auto piece =
        static_cast<int64_t>(o.type.shape.size()) == rank && o.type.dtype == result.type.dtype && o.type.device == result.type.device
            ? piece_of(o, static_cast<size_t>(along))
            : std::nullopt;
    if (!piece) return nullptr;
    if (piece->bytes) sum += piece->bytes, pieces.push_back(*piece);
  }
  auto join = std::make_unique<Join>(step, schedule, std::move(pieces), static_cast<size_t>(along));
  return join->positions() * static_cast<int64_t>(sum) == bytes ? std::move(join) : nullptr;
}

}  // namespace broach

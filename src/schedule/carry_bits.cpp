// Elements of bf16 and fp16 that a kernel only moves go as integers. As numbers they would be widened and rounded again, in which NaNs lose
// the bits that tell them apart: those of integers that a program has packed (`ids.view(torch.bfloat16)`), and signs.
#include <algorithm>
#include <functional>
#include <optional>

#include "schedule/exprs.h"

namespace broach {

namespace {

using Kind = KernelExpr::Kind;

bool is_half(DType t) { return t == DType::bf16 || t == DType::f16; }
bool is_op(const KernelExpr& e, Op op) { return e.kind == Kind::op && e.op == op; }

class BitCarrier {
 public:
  explicit BitCarrier(KernelStep step) : step_(std::move(step)), whole_(step_.kernel), k_(*whole_), out_(k_), exprs_(out_) {
    out_.exprs.clear();
    numbers_.resize(k_.exprs.size(), -1), bits_.resize(k_.exprs.size(), -1), twins_.resize(k_.buffers.size(), -1);
    for (size_t i = 0; i < k_.exprs.size(); ++i) is_moved_.push_back(moves(k_.exprs[i]));
    is_carried_.resize(k_.exprs.size());
    for (const KernelStore& s : k_.stores)
      if (is_carried(s)) carry(s.expr);
    for (const KernelExpr& e : k_.exprs)
      if (gives_bits(e)) carry(e.args[0]);
  }

  std::optional<KernelStep> run() {
    if (std::ranges::none_of(is_carried_, std::identity())) return std::nullopt;
    for (KernelStore& s : out_.stores) {
      const bool is_bits = is_carried(s);
      s.expr = is_bits ? bits(s.expr) : number(s.expr);
      if (is_bits) s.access.buffer = twin(s.access.buffer);
    }
    step_.kernel = std::make_shared<const Kernel>(std::move(out_));
    return without_idle_buffers(std::move(step_));
  }

 private:
  bool is_moved(int e) const { return is_moved_[static_cast<size_t>(e)]; }
  bool is_carried(const KernelStore& s) const { return is_moved(s.expr) && !s.adds; }
  bool gives_bits(const KernelExpr& e) const { return is_op(e, Op::bitcast) && is_moved(e.args[0]); }

  // Whether some elements that are read become the value as they are, but for a sign.
  bool moves(const KernelExpr& e) const {
    if (!is_half(e.dtype)) return false;
    if (e.kind == Kind::load) return true;
    if (is_op(e, Op::copy) || is_op(e, Op::neg) || is_op(e, Op::abs)) return is_moved(e.args[0]);
    if (is_op(e, Op::where)) return (is_moved(e.args[1]) && !is_number(e.args[1], e.args[0])) || is_moved(e.args[2]);
    return is_op(e, Op::bitcast);
  }

  // Whether it is no NaN where the condition holds, as in a leaky ReLU.
  bool is_number(int e, int condition) const {
    const KernelExpr& c = k_.exprs[static_cast<size_t>(condition)];
    const bool is_order = is_op(c, Op::gt) || is_op(c, Op::ge) || is_op(c, Op::lt) || is_op(c, Op::le) || is_op(c, Op::eq);
    return is_order && std::ranges::any_of(c.args, [&](int a) {
             const KernelExpr& x = k_.exprs[static_cast<size_t>(a)];
             return a == e || (is_op(x, Op::cast) && x.args[0] == e);
           });
  }

  void carry(int e) {
    if (!is_moved(e) || is_carried_[static_cast<size_t>(e)]) return;
    is_carried_[static_cast<size_t>(e)] = true;
    const KernelExpr& x = k_.exprs[static_cast<size_t>(e)];
    for (size_t a = is_op(x, Op::where) ? 1 : 0; a < x.args.size() && !is_op(x, Op::bitcast); ++a) carry(x.args[a]);
  }

  // ---- what expressions become ----
  int number(int e) {
    int& known = numbers_[static_cast<size_t>(e)];
    if (known >= 0) return known;
    const KernelExpr& x = k_.exprs[static_cast<size_t>(e)];
    if (is_carried_[static_cast<size_t>(e)]) return known = exprs_.op(Op::bitcast, x.dtype, {bits(e)});
    if (gives_bits(x))
      return known = is_half(x.dtype) ? exprs_.op(Op::bitcast, x.dtype, {bits(x.args[0])}) : exprs_.cast(bits(x.args[0]), x.dtype);
    return known = exprs_.add(moved(x, [this](int a) { return number(a); }));
  }

  int bits(int e) {
    int& known = bits_[static_cast<size_t>(e)];
    if (known >= 0) return known;
    const KernelExpr& x = k_.exprs[static_cast<size_t>(e)];
    auto with = [&](Op op, int64_t n) { return exprs_.op(op, DType::i16, {bits(x.args[0]), exprs_.constant(n, DType::i16)}); };
    if (!is_carried_[static_cast<size_t>(e)]) return known = exprs_.op(Op::bitcast, DType::i16, {number(e)});
    if (x.kind == Kind::load) {
      KernelExpr load = moved(x, [this](int a) { return number(a); });
      load.dtype = DType::i16, load.access.buffer = twin(x.access.buffer);
      return known = exprs_.add(std::move(load));
    }
    switch (x.op) {
      case Op::copy: return known = bits(x.args[0]);
      case Op::neg: return known = with(Op::bit_xor, -0x8000);
      case Op::abs: return known = with(Op::bit_and, 0x7fff);
      case Op::bitcast:
        return known =
                   is_half(k_.exprs[static_cast<size_t>(x.args[0])].dtype) ? bits(x.args[0]) : exprs_.cast(number(x.args[0]), DType::i16);
      default: return known = exprs_.op(Op::where, DType::i16, {number(x.args[0]), bits(x.args[1]), bits(x.args[2])});
    }
  }

  // The buffer, seen as integers.
  int twin(int buffer) {
    const auto b = static_cast<size_t>(buffer);
    if (twins_[b] >= 0) return twins_[b];
    step_.buffers.push_back(step_.buffers[b]);
    if (!step_.starts.empty()) step_.starts.push_back(step_.starts[b]);
    out_.buffers.push_back(DType::i16);
    return twins_[b] = static_cast<int>(out_.buffers.size()) - 1;
  }

  KernelStep step_;
  const std::shared_ptr<const Kernel> whole_;
  const Kernel& k_;
  Kernel out_;
  ExprList exprs_;
  std::vector<bool> is_moved_, is_carried_;  // by expression; carried: its bits are asked for
  std::vector<int> numbers_, bits_, twins_;  // by expression and by buffer; -1: not there yet
};

}  // namespace

void carry_bits(std::vector<Step>& steps) {
  for (Step& s : steps)
    if (auto* k = std::get_if<KernelStep>(&s.work))
      if (auto carried = BitCarrier(*k).run()) *k = std::move(*carried);
}

}  // namespace broach

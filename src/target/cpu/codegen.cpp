// The loop nest of a kernel: units are positions of the outer axes (and blocks of the vector axis, if it is not reduced).
// Within a unit, reductions run in stages: those that need no other reduction first. One axis is vectorised; its tail is a
// masked iteration. If the vector axis is reduced, each lane reduces a part and the lanes are combined at the end; if not,
// lanes are different results.
#include "target/cpu/codegen.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "support/error.h"

namespace broach::cpu {

namespace {

using Kind = KernelExpr::Kind;
using llvm::BasicBlock;
using llvm::Type;
using V = llvm::Value*;

std::optional<MathFn> math_fn(Op op) {
  switch (op) {
    case Op::exp: return MathFn::exp;
    case Op::exp2: return MathFn::exp2;
    case Op::expm1: return MathFn::expm1;
    case Op::log: return MathFn::log;
    case Op::log2: return MathFn::log2;
    case Op::log10: return MathFn::log10;
    case Op::log1p: return MathFn::log1p;
    case Op::sin: return MathFn::sin;
    case Op::cos: return MathFn::cos;
    case Op::tan: return MathFn::tan;
    case Op::asin: return MathFn::asin;
    case Op::acos: return MathFn::acos;
    case Op::atan: return MathFn::atan;
    case Op::sinh: return MathFn::sinh;
    case Op::cosh: return MathFn::cosh;
    case Op::tanh: return MathFn::tanh;
    case Op::asinh: return MathFn::asinh;
    case Op::acosh: return MathFn::acosh;
    case Op::atanh: return MathFn::atanh;
    case Op::erf: return MathFn::erf;
    case Op::erfc: return MathFn::erfc;
    case Op::erfinv: return MathFn::erfinv;
    case Op::lgamma: return MathFn::lgamma;
    case Op::digamma: return MathFn::digamma;
    case Op::sigmoid: return MathFn::sigmoid;
    case Op::rsqrt: return MathFn::rsqrt;
    case Op::pow: return MathFn::pow;
    case Op::atan2: return MathFn::atan2;
    case Op::hypot: return MathFn::hypot;
    default: return std::nullopt;
  }
}

bool is_expensive(Op op) { return math_fn(op).has_value() || op == Op::gelu_erf || op == Op::gelu_tanh || op == Op::silu; }
bool is_unsigned(DType t) { return t == DType::u8 || t == DType::b1; }
bool is_index_reduction(Op op) { return op == Op::reduce_argmin || op == Op::reduce_argmax; }

class Emitter {
 public:
  Emitter(const Kernel& kernel, llvm::Module& module, const std::string& name, const CodegenOptions& options)
      : k_(kernel), options_(options), context_(module.getContext()), b_(context_) {
    auto* ptr = llvm::PointerType::get(context_, 0);
    auto* type = llvm::FunctionType::get(b_.getVoidTy(), {ptr, ptr, b_.getInt64Ty(), b_.getInt64Ty(), ptr, ptr}, false);
    fn_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module);
    entry_ = BasicBlock::Create(context_, "entry", fn_);
    if (!k_.strict) {
      llvm::FastMathFlags flags;
      flags.setAllowContract(true);
      b_.setFastMathFlags(flags);
    }
  }

  KernelShape run() {
    plan();
    b_.SetInsertPoint(entry_);
    load_arguments();
    auto* begin = fn_->getArg(2);
    auto* end = fn_->getArg(3);
    loop("unit", begin, end, b_.getInt64(1), [&](V unit) { emit_unit(unit); });
    b_.CreateStore(b_.CreateOr(b_.CreateLoad(b_.getInt32Ty(), fn_->getArg(5)), b_.CreateLoad(b_.getInt32Ty(), error_)), fn_->getArg(5));
    b_.CreateRetVoid();
    return shape_;
  }

 private:
  // ---- plan ----
  void plan() {
    if (k_.axes.empty()) k_.axes.push_back({kFirstAxis, 1, false});  // a kernel of one point
    uses_ = axis_uses(k_);
    choose_vector_axis();
    choose_lanes();
    for (const auto& a : k_.axes) has_reduced_ |= a.reduced;
    find_stages();
    find_cached();
    plan_units();
  }

  // Stride of an address along an axis: nothing if it is not linear.
  static std::optional<SymInt> stride(const SymInt& index, SymbolId axis) {
    auto linear = index.linear_in(axis);
    return linear ? std::optional(linear->first) : std::nullopt;
  }

  int score(size_t axis) const {
    int total = 0;
    auto rate = [&](const Access& a, bool dynamic, int weight) {
      auto s = stride(a.index, k_.axes[axis].id);
      if (!s || dynamic) total -= weight;
      else if (*s == SymInt(1)) total += weight;
      else if (!(*s == SymInt(0))) total -= weight;
    };
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      if (e.kind != Kind::load) continue;
      bool dynamic = std::any_of(e.access.dynamic.begin(), e.access.dynamic.end(), [&](const auto& d) { return uses_[static_cast<size_t>(d.first)][axis]; });
      rate(e.access, dynamic, 2);
    }
    for (const auto& s : k_.stores) rate(s.access, false, k_.axes[axis].reduced && !uses_[static_cast<size_t>(s.expr)][axis] ? 0 : 3);
    if (auto n = k_.axes[axis].extent.maybe_constant(); n && *n < 8) total -= 2;
    return total;
  }

  void choose_vector_axis() {
    int best = std::numeric_limits<int>::min();
    for (size_t a = 0; a < k_.axes.size(); ++a)
      if (int s = score(a); s >= best) best = s, vec_ = a;  // the innermost of equals
    vec_reduced_ = k_.axes[vec_].reduced;
  }

  void choose_lanes() {
    int64_t widest = 1;
    for (const auto& e : k_.exprs)
      if (e.kind != Kind::position && e.dtype != DType::i64) widest = std::max(widest, is_low_precision(e.dtype) ? int64_t{4} : size_of(e.dtype));
    lanes_ = static_cast<unsigned>(options_.vector_bytes / std::max<int64_t>(widest, 4));
  }

  // The stage of a reduction is one more than that of the reductions below it.
  void find_stages() {
    std::vector<int> depth(k_.exprs.size());
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      for_each_operand(e, [&](int a) { depth[i] = std::max(depth[i], depth[static_cast<size_t>(a)]); });
      if (e.kind != Kind::reduction) continue;
      auto stage = static_cast<size_t>(depth[i]);
      if (stages_.size() <= stage) stages_.resize(stage + 1);
      stages_[stage].push_back(static_cast<int>(i));
      ++depth[i];
    }
  }

  static void for_each_operand(const KernelExpr& e, const std::function<void(int)>& f) {
    for (int a : e.args) f(a);
    for (const auto& d : e.access.dynamic) f(d.first);
    if (e.predicate >= 0) f(e.predicate);
  }

  bool inner(int e) const {  // changes along the reduced axes
    for (size_t a = 0; a < k_.axes.size(); ++a)
      if (k_.axes[a].reduced && uses_[static_cast<size_t>(e)][a]) return true;
    return false;
  }

  // Expressions over all axes that a pass needs, not looking below reductions.
  void collect(int e, std::vector<bool>& seen) const {
    if (seen[static_cast<size_t>(e)]) return;
    seen[static_cast<size_t>(e)] = true;
    const auto& x = k_.exprs[static_cast<size_t>(e)];
    if (x.kind == Kind::reduction) return;
    for_each_operand(x, [&](int a) { collect(a, seen); });
  }

  // Expensive values that several passes over a row need are kept in a row of scratch memory.
  void find_cached() {
    if (!vec_reduced_ || std::count_if(k_.axes.begin(), k_.axes.end(), [](const auto& a) { return a.reduced; }) != 1) return;
    std::vector<int> passes(k_.exprs.size());
    auto count = [&](const std::vector<int>& roots) {
      std::vector<bool> seen(k_.exprs.size());
      for (int r : roots) collect(r, seen);
      for (size_t i = 0; i < seen.size(); ++i) passes[i] += seen[i];
    };
    for (const auto& stage : stages_) {
      std::vector<int> roots;
      for (int r : stage) roots.push_back(k_.exprs[static_cast<size_t>(r)].args[0]);
      count(roots);
    }
    std::vector<int> stored;
    for (const auto& s : k_.stores)
      if (inner(s.expr)) stored.push_back(s.expr);
    count(stored);
    int64_t row = 0;
    for (size_t i = 0; i < k_.exprs.size(); ++i) {
      const auto& e = k_.exprs[i];
      if (e.kind != Kind::op || !is_expensive(e.op) || passes[i] < 2 || !inner(static_cast<int>(i)) || e.dtype == DType::b1) continue;
      cached_[static_cast<int>(i)] = row++;
    }
    shape_.scratch_bytes = SymInt(row * 8) * (k_.axes[vec_].extent + 64);
  }

  void plan_units() {
    shape_.units = 1;
    shape_.work_per_unit = 1;
    for (size_t a = 0; a < k_.axes.size(); ++a) {
      if (k_.axes[a].reduced || a == vec_) continue;
      outer_.push_back(a);
      shape_.units = shape_.units * k_.axes[a].extent;
    }
    for (const auto& a : k_.axes)
      if (a.reduced) shape_.work_per_unit = shape_.work_per_unit * a.extent;
    if (!vec_reduced_) {
      block_ = has_reduced_ ? static_cast<int64_t>(lanes_) * 4 : 4096;
      blocks_ = ceildiv(k_.axes[vec_].extent, block_);
      shape_.units = shape_.units * blocks_;
      auto extent = k_.axes[vec_].extent.maybe_constant();
      shape_.work_per_unit = shape_.work_per_unit * SymInt(extent ? std::min(*extent, block_) : block_);
    }
    for (const auto& e : k_.exprs)
      if (e.kind == Kind::op || e.kind == Kind::load) shape_.ops_per_point += e.kind == Kind::op && is_expensive(e.op) ? 12 : 1;
  }

  // ---- small things ----
  Type* scalar_type(DType t) {
    switch (t) {
      case DType::b1: return b_.getInt1Ty();
      case DType::u8: case DType::i8: return b_.getInt8Ty();
      case DType::i16: return b_.getInt16Ty();
      case DType::i32: return b_.getInt32Ty();
      case DType::i64: return b_.getInt64Ty();
      // Complex numbers are carried as they are; arithmetic takes them apart before.
      case DType::c32: return b_.getInt32Ty();
      case DType::c64: return b_.getInt64Ty();
      case DType::c128: return b_.getInt128Ty();
      case DType::f64: return b_.getDoubleTy();
      case DType::f16: case DType::bf16: case DType::f32: return b_.getFloatTy();
      default: fail("cpu: no code for element type ", name_of(t));
    }
  }
  Type* memory_type(DType t) {
    if (t == DType::b1) return b_.getInt8Ty();
    if (t == DType::bf16) return b_.getInt16Ty();
    if (t == DType::f16) return b_.getHalfTy();
    return scalar_type(t);
  }
  Type* vector_of(Type* t) { return llvm::FixedVectorType::get(t, lanes_); }
  bool is_vector(V v) { return v->getType()->isVectorTy(); }
  V splat(V v) { return is_vector(v) ? v : b_.CreateVectorSplat(lanes_, v); }
  V i64(int64_t v) { return b_.getInt64(static_cast<uint64_t>(v)); }
  V iota() {
    std::vector<llvm::Constant*> lanes;
    for (unsigned i = 0; i < lanes_; ++i) lanes.push_back(b_.getInt64(i));
    return llvm::ConstantVector::get(lanes);
  }
  // Both operands as vectors if one is.
  void even_out(V& a, V& b) {
    if (is_vector(a) && !is_vector(b)) b = splat(b);
    if (is_vector(b) && !is_vector(a)) a = splat(a);
  }
  llvm::AllocaInst* local(Type* t, const char* name) {
    llvm::IRBuilder<> at(entry_, entry_->begin());
    auto* a = at.CreateAlloca(t, nullptr, name);
    a->setAlignment(llvm::Align(64));
    return a;
  }

  // for (i = begin; i < end; i += step) body(i)
  void loop(const char* name, V begin, V end, V step, const std::function<void(V)>& body) {
    auto* before = b_.GetInsertBlock();
    auto* head = BasicBlock::Create(context_, name, fn_);
    auto* inside = BasicBlock::Create(context_, "body", fn_);
    auto* after = BasicBlock::Create(context_, "done", fn_);
    b_.CreateBr(head);
    b_.SetInsertPoint(head);
    auto* i = b_.CreatePHI(b_.getInt64Ty(), 2, name);
    i->addIncoming(begin, before);
    b_.CreateCondBr(b_.CreateICmpSLT(i, end), inside, after);
    b_.SetInsertPoint(inside);
    body(i);
    i->addIncoming(b_.CreateAdd(i, step, "", true, true), b_.GetInsertBlock());
    b_.CreateBr(head);
    b_.SetInsertPoint(after);
  }

  void when(V condition, const std::function<void()>& body) {
    auto* inside = BasicBlock::Create(context_, "tail", fn_);
    auto* after = BasicBlock::Create(context_, "after", fn_);
    b_.CreateCondBr(condition, inside, after);
    b_.SetInsertPoint(inside);
    body();
    b_.CreateBr(after);
    b_.SetInsertPoint(after);
  }

  void load_arguments() {
    auto* ptr = llvm::PointerType::get(context_, 0);
    for (size_t i = 0; i < k_.buffers.size(); ++i)
      buffers_.push_back(b_.CreateLoad(ptr, b_.CreateConstGEP1_64(ptr, fn_->getArg(0), i)));
    for (int i = 0; i < k_.symbols; ++i)
      symbols_.push_back(b_.CreateLoad(b_.getInt64Ty(), b_.CreateConstGEP1_64(b_.getInt64Ty(), fn_->getArg(1), static_cast<uint64_t>(i))));
    error_ = local(b_.getInt32Ty(), "error");
    b_.CreateStore(b_.getInt32(0), error_);
  }

  // ---- integers ----
  V floor_divide(V a, V n, bool want_mod) {
    // Positions are not negative but for what a mask hides; there any value does.
    return want_mod ? b_.CreateURem(a, n) : b_.CreateUDiv(a, n);
  }

  // The value of an index at the current point; the vector axis stands for lane 0, or for all lanes where `lanes` is set.
  V integer(const SymInt& e, bool lanes) {
    V sum = i64(e.constant_part());
    for (const Term& t : e.terms()) {
      V p = i64(t.coefficient);
      for (const Atom& a : t.factors) {
        V f = atom(a, lanes);
        even_out(p, f);
        p = b_.CreateMul(p, f);
      }
      even_out(sum, p);
      sum = b_.CreateAdd(sum, p);
    }
    return sum;
  }

  V atom(const Atom& a, bool lanes) {
    if (a.kind == AtomKind::symbol) {
      if (a.symbol < kFirstAxis) return symbols_.at(a.symbol);
      V at = point_.at(a.symbol);
      if (!lanes || a.symbol != k_.axes[vec_].id) return at;
      return b_.CreateAdd(splat(at), iota());
    }
    V x = integer(a.args->first, lanes), y = integer(a.args->second, lanes);
    even_out(x, y);
    switch (a.kind) {
      case AtomKind::floordiv: return floor_divide(x, y, false);
      case AtomKind::mod: return floor_divide(x, y, true);
      case AtomKind::min: return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, x, y);
      default: return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, x, y);
    }
  }

  bool varies(const SymInt& e) const { return e.contains(k_.axes[vec_].id); }

  V position(const SymInt& e) {
    if (!varies(e)) return integer(e, false);
    if (auto s = stride(e, k_.axes[vec_].id)) return b_.CreateAdd(splat(integer(e, false)), b_.CreateMul(splat(integer(*s, false)), iota()));
    return integer(e, true);
  }

  // ---- memory ----
  V element(int buffer, V index) { return b_.CreateGEP(memory_type(k_.buffers[static_cast<size_t>(buffer)]), buffers_[static_cast<size_t>(buffer)], index); }

  V to_compute(V v, DType t) {
    if (t == DType::b1) return b_.CreateICmpNE(v, llvm::Constant::getNullValue(v->getType()));
    if (t == DType::bf16) return emit_bf16_to_f32(b_, v);
    if (t == DType::f16) return emit_f16_to_f32(b_, v);
    return v;
  }
  V to_memory(V v, DType t) {
    if (t == DType::b1) return b_.CreateZExt(v, is_vector(v) ? vector_of(b_.getInt8Ty()) : b_.getInt8Ty());
    if (t == DType::bf16) return emit_f32_to_bf16(b_, v);
    if (t == DType::f16) return emit_f32_to_f16(b_, v);
    return v;
  }

  // Lanes that exist and that the expression's predicate lets through; null for all.
  V mask_of(const KernelExpr& e) {
    V mask = mask_;
    if (e.predicate < 0) return mask;
    V p = value(e.predicate);
    if (!mask || !is_vector(p)) return mask && !is_vector(p) ? b_.CreateAnd(mask, splat(p)) : p;
    return b_.CreateAnd(mask, p);
  }

  V load(const KernelExpr& e) {
    const Access& a = e.access;
    DType stored = k_.buffers[static_cast<size_t>(a.buffer)];
    Type* type = memory_type(stored);
    auto align = llvm::Align(static_cast<uint64_t>(size_of(stored)));
    V dynamic = nullptr;
    for (const auto& [expr, s] : a.dynamic) {
      V d = value(expr), scale = integer(s, false);
      even_out(d, scale);
      V part = b_.CreateMul(d, scale);
      if (dynamic) even_out(dynamic, part);
      dynamic = dynamic ? b_.CreateAdd(dynamic, part) : part;
    }
    auto step = stride(a.index, k_.axes[vec_].id);
    bool uniform_dynamic = !dynamic || !is_vector(dynamic);
    auto address = [&] {
      V i = integer(a.index, false);
      return element(a.buffer, dynamic ? b_.CreateAdd(i, dynamic) : i);
    };
    if (uniform_dynamic && step && *step == SymInt(0)) return to_compute(load_scalar(type, address(), e, align), stored);
    V mask = mask_of(e);
    if (mask && !is_vector(mask)) mask = splat(mask);
    V nothing = llvm::Constant::getNullValue(vector_of(type));
    if (uniform_dynamic && step && *step == SymInt(1)) {
      V p = address();
      return to_compute(mask ? static_cast<V>(b_.CreateMaskedLoad(vector_of(type), p, align, mask, nothing)) : b_.CreateAlignedLoad(vector_of(type), p, align), stored);
    }
    V index = position(a.index);
    if (dynamic) {
      even_out(index, dynamic);
      index = b_.CreateAdd(index, dynamic);
    }
    V gathered = b_.CreateMaskedGather(vector_of(type), element(a.buffer, splat(index)), align, mask ? mask : llvm::Constant::getAllOnesValue(vector_of(b_.getInt1Ty())), nothing);
    return to_compute(gathered, stored);
  }

  V load_scalar(Type* type, V p, const KernelExpr& e, llvm::Align align) {
    if (e.predicate < 0) return b_.CreateAlignedLoad(type, p, align);
    V condition = value(e.predicate);
    if (is_vector(condition)) condition = b_.CreateOrReduce(mask_ ? b_.CreateAnd(mask_, condition) : condition);
    auto* one = llvm::FixedVectorType::get(type, 1);
    V mask = b_.CreateVectorSplat(1, condition);
    return b_.CreateExtractElement(b_.CreateMaskedLoad(one, p, align, mask, llvm::Constant::getNullValue(one)), uint64_t{0});
  }

  void store(const KernelStore& s) {
    DType stored = k_.buffers[static_cast<size_t>(s.access.buffer)];
    auto align = llvm::Align(static_cast<uint64_t>(size_of(stored)));
    V v = to_memory(value(s.expr), stored);
    auto step = stride(s.access.index, k_.axes[vec_].id);
    if (step && *step == SymInt(0) && !(k_.axes[vec_].extent == SymInt(1)) && !is_vector(v)) {
      b_.CreateAlignedStore(v, element(s.access.buffer, integer(s.access.index, false)), align);
      return;
    }
    v = splat(v);
    V all = llvm::Constant::getAllOnesValue(vector_of(b_.getInt1Ty()));
    if ((step && *step == SymInt(1)) || k_.axes[vec_].extent == SymInt(1)) {
      V p = element(s.access.buffer, integer(s.access.index, false));
      if (mask_) b_.CreateMaskedStore(v, p, align, mask_);
      else b_.CreateAlignedStore(v, p, align);
      return;
    }
    b_.CreateMaskedScatter(v, element(s.access.buffer, splat(position(s.access.index))), align, mask_ ? mask_ : all);
  }

  // ---- expressions ----
  V value(int e) {
    if (auto it = values_.find(e); it != values_.end()) return it->second;
    V v = compute(e);
    values_[e] = v;
    return v;
  }

  V compute(int at) {
    const KernelExpr& e = k_.exprs[static_cast<size_t>(at)];
    switch (e.kind) {
      case Kind::constant: return constant(e.value, e.dtype);
      case Kind::position: return position(e.access.index);
      case Kind::load: return load(e);
      case Kind::bounds: return bounds(e);
      case Kind::reduction: fail("cpu: a reduction is used before it is computed");
      default: break;
    }
    auto cached = cached_.find(at);
    if (cached != cached_.end() && filled_.contains(at)) return scratch(cached->second, e.dtype, nullptr);
    std::vector<V> args;
    bool any_vector = false;
    for (int a : e.args) {
      args.push_back(value(a));
      any_vector |= is_vector(args.back());
    }
    if (any_vector)
      for (V& a : args) a = splat(a);
    DType from = e.args.empty() ? e.dtype : k_.exprs[static_cast<size_t>(e.args.back())].dtype;
    V v = operation(e, args, from);
    if (k_.strict && is_low_precision(e.dtype)) v = to_compute(to_memory(v, e.dtype), e.dtype);
    if (cached != cached_.end()) scratch(cached->second, e.dtype, splat(v));
    return v;
  }

  // Element `axis position` of row `row` of the scratch memory: stores v, or loads.
  V scratch(int64_t row, DType t, V v) {
    V start = b_.CreateMul(i64(row * 8), b_.CreateAdd(integer(k_.axes[vec_].extent, false), i64(64)));
    V p = b_.CreateGEP(scalar_type(t), b_.CreateGEP(b_.getInt8Ty(), fn_->getArg(4), start), point_.at(k_.axes[vec_].id));
    // A whole vector always fits: a row has room beyond its end.
    if (!v) return b_.CreateAlignedLoad(vector_of(scalar_type(t)), p, llvm::Align(4));
    return b_.CreateAlignedStore(v, p, llvm::Align(4));
  }

  V constant(const Scalar& s, DType t) {
    if (t == DType::b1) return b_.getInt1(as_double(s) != 0);
    if (is_integral(t)) return llvm::ConstantInt::get(scalar_type(t), static_cast<uint64_t>(as_int(s)), true);
    if (is_complex(t)) return complex_bits(s, t);
    double d = as_double(s);
    return llvm::ConstantFP::get(scalar_type(t), t == DType::f64 ? d : static_cast<double>(rounded(d, t)));
  }

  V complex_bits(const Scalar& s, DType t) {
    auto z = is_complex(s) ? std::get<std::complex<double>>(s) : std::complex<double>(as_double(s));
    Type* part = t == DType::c128 ? b_.getDoubleTy() : t == DType::c64 ? b_.getFloatTy() : b_.getHalfTy();
    auto bits = [&](double x) { return llvm::cast<llvm::ConstantFP>(llvm::ConstantFP::get(part, x))->getValueAPF().bitcastToAPInt(); };
    return llvm::ConstantInt::get(context_, bits(z.imag()).concat(bits(z.real())));
  }

  static float rounded(double d, DType t) {
    auto f = static_cast<float>(d);
    if (t == DType::bf16) {
      uint32_t bits;
      memcpy(&bits, &f, 4);
      if (f == f) bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
      memcpy(&f, &bits, 4);
    }
    if (t == DType::f16) f = static_cast<float>(static_cast<_Float16>(f));
    return f;
  }

  V bounds(const KernelExpr& e) {
    V i = value(e.args[0]), limit = integer(e.limit, false);
    even_out(i, limit);
    V bad = b_.CreateICmpUGE(i, limit);
    V mask = mask_of(e);
    V counted = bad;
    if (mask) {
      even_out(counted, mask);
      counted = b_.CreateAnd(counted, mask);
    }
    V any = is_vector(counted) ? b_.CreateOrReduce(counted) : counted;
    b_.CreateStore(b_.CreateOr(b_.CreateLoad(b_.getInt32Ty(), error_), b_.CreateZExt(any, b_.getInt32Ty())), error_);
    return b_.CreateSelect(bad, llvm::Constant::getNullValue(i->getType()), i);
  }

  V fp(Type* like, double d) { return llvm::ConstantFP::get(like, d); }
  V math(MathFn f, llvm::ArrayRef<V> args) { return emit_math(b_, f, args, options_.features); }

  V operation(const KernelExpr& e, const std::vector<V>& a, DType from) {
    DType operand = e.kind == Kind::op && e.op == Op::where ? e.dtype : from;
    bool is_float = is_floating(operand);
    if (e.op == Op::cast) return cast(a[0], from, e.dtype);
    if (e.op == Op::bitcast) return bitcast(a[0], from, e.dtype);
    if (e.op == Op::where) return b_.CreateSelect(a[0], a[1], a[2]);
    if (e.op == Op::copy) return a[0];
    if (kind_of(e.op) == OpKind::compare) return compare(e.op, a, operand);
    V v = is_float ? float_op(e.op, a) : int_op(e.op, a, operand);
    check(v != nullptr, "cpu: no code for ", name_of(e.op), " on ", name_of(operand));
    return v;
  }

  V float_op(Op op, const std::vector<V>& a) {
    if (auto f = math_fn(op)) return math(*f, a);
    V x = a[0], y = a.size() > 1 ? a[1] : nullptr;
    Type* t = x->getType();
    using namespace llvm;
    switch (op) {
      case Op::neg: return b_.CreateFNeg(x);
      case Op::abs: return b_.CreateUnaryIntrinsic(Intrinsic::fabs, x);
      case Op::sign: return sign(x);
      case Op::floor: return b_.CreateUnaryIntrinsic(Intrinsic::floor, x);
      case Op::ceil: return b_.CreateUnaryIntrinsic(Intrinsic::ceil, x);
      case Op::trunc: return b_.CreateUnaryIntrinsic(Intrinsic::trunc, x);
      case Op::round: return b_.CreateUnaryIntrinsic(Intrinsic::rint, x);
      case Op::sqrt: return b_.CreateUnaryIntrinsic(Intrinsic::sqrt, x);
      case Op::reciprocal: return b_.CreateFDiv(fp(t, 1), x);
      case Op::relu: return b_.CreateSelect(b_.CreateFCmpOLT(x, fp(t, 0)), fp(t, 0), x);
      case Op::gelu_erf: return b_.CreateFMul(b_.CreateFMul(x, fp(t, 0.5)), b_.CreateFAdd(fp(t, 1), math(MathFn::erf, {b_.CreateFMul(x, fp(t, 0.70710678118654752440))})));
      case Op::gelu_tanh: return gelu_tanh(x);
      case Op::silu: return b_.CreateFMul(x, math(MathFn::sigmoid, {x}));
      case Op::add: return b_.CreateFAdd(x, y);
      case Op::sub: return b_.CreateFSub(x, y);
      case Op::mul: return b_.CreateFMul(x, y);
      case Op::div: return b_.CreateFDiv(x, y);
      case Op::floor_div: return float_floor_div(x, y);
      case Op::mod: return float_mod(x, y);
      case Op::fmod: return b_.CreateFRem(x, y);
      case Op::nextafter: return next_after(x, y);
      case Op::copysign: return b_.CreateBinaryIntrinsic(Intrinsic::copysign, x, y);
      case Op::min: return b_.CreateBinaryIntrinsic(Intrinsic::minimum, x, y);
      case Op::max: return b_.CreateBinaryIntrinsic(Intrinsic::maximum, x, y);
      default: return nullptr;
    }
  }

  // One step of the bits towards y; a step away from zero adds to the magnitude.
  V next_after(V x, V y) {
    Type* t = x->getType();
    Type* bits_t = t->getScalarType()->isFloatTy() ? static_cast<Type*>(b_.getInt32Ty()) : b_.getInt64Ty();
    if (is_vector(x)) bits_t = vector_of(bits_t);
    V one = llvm::ConstantInt::get(bits_t, 1), bits = b_.CreateBitCast(x, bits_t), zero = fp(t, 0);
    V outwards = b_.CreateICmpEQ(b_.CreateFCmpOGT(y, x), b_.CreateFCmpOGT(x, zero));
    V moved = b_.CreateBitCast(b_.CreateSelect(outwards, b_.CreateAdd(bits, one), b_.CreateSub(bits, one)), t);
    V smallest = b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, b_.CreateBitCast(one, t), y);
    V result = b_.CreateSelect(b_.CreateFCmpOEQ(x, zero), smallest, moved);
    result = b_.CreateSelect(b_.CreateFCmpOEQ(x, y), y, result);
    return b_.CreateSelect(b_.CreateFCmpUNO(x, y), b_.CreateFAdd(x, y), result);
  }

  V sign(V x) {
    V zero = llvm::Constant::getNullValue(x->getType());
    V up = b_.CreateSelect(b_.CreateFCmpOGT(x, zero), fp(x->getType(), 1), zero);
    return b_.CreateSelect(b_.CreateFCmpOLT(x, zero), fp(x->getType(), -1), up);
  }

  V gelu_tanh(V x) {
    Type* t = x->getType();
    V cube = b_.CreateFMul(b_.CreateFMul(x, x), x);
    V inner = b_.CreateFMul(fp(t, 0.79788456080286535588), b_.CreateFAdd(x, b_.CreateFMul(fp(t, 0.044715), cube)));
    return b_.CreateFMul(b_.CreateFMul(x, fp(t, 0.5)), b_.CreateFAdd(fp(t, 1), math(MathFn::tanh, {inner})));
  }

  // As c10::div_floor_floating: exact through fmod, with the sign of a zero quotient.
  V float_floor_div(V x, V y) {
    Type* t = x->getType();
    V zero = fp(t, 0), rest = b_.CreateFRem(x, y);
    V quotient = b_.CreateFDiv(b_.CreateFSub(x, rest), y);
    V crosses = b_.CreateAnd(b_.CreateFCmpUNE(rest, zero), b_.CreateICmpNE(b_.CreateFCmpOLT(y, zero), b_.CreateFCmpOLT(rest, zero)));
    quotient = b_.CreateSelect(crosses, b_.CreateFSub(quotient, fp(t, 1)), quotient);
    V floored = b_.CreateUnaryIntrinsic(llvm::Intrinsic::floor, quotient);
    V nearest = b_.CreateSelect(b_.CreateFCmpOGT(b_.CreateFSub(quotient, floored), fp(t, 0.5)), b_.CreateFAdd(floored, fp(t, 1)), floored);
    V ratio = b_.CreateFDiv(x, y);
    V result = b_.CreateSelect(b_.CreateFCmpUNE(quotient, zero), nearest, b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, zero, ratio));
    return b_.CreateSelect(b_.CreateFCmpOEQ(y, zero), ratio, result);
  }

  V float_mod(V x, V y) {
    V zero = fp(x->getType(), 0), rest = b_.CreateFRem(x, y);
    V crosses = b_.CreateAnd(b_.CreateFCmpUNE(rest, zero), b_.CreateICmpNE(b_.CreateFCmpOLT(y, zero), b_.CreateFCmpOLT(rest, zero)));
    return b_.CreateSelect(crosses, b_.CreateFAdd(rest, y), rest);
  }

  V int_op(Op op, const std::vector<V>& a, DType t) {
    V x = a[0], y = a.size() > 1 ? a[1] : nullptr;
    bool u = is_unsigned(t);
    V zero = llvm::Constant::getNullValue(x->getType());
    V one = llvm::ConstantInt::get(x->getType(), 1);
    using llvm::Intrinsic::smax;
    switch (op) {
      case Op::neg: return b_.CreateNeg(x);
      case Op::abs: return u ? x : b_.CreateSelect(b_.CreateICmpSLT(x, zero), b_.CreateNeg(x), x);
      case Op::sign: {
        V up = b_.CreateSelect(u ? b_.CreateICmpNE(x, zero) : b_.CreateICmpSGT(x, zero), one, zero);
        return u ? up : b_.CreateSelect(b_.CreateICmpSLT(x, zero), llvm::Constant::getAllOnesValue(x->getType()), up);
      }
      case Op::floor: case Op::ceil: case Op::trunc: case Op::round: return x;
      case Op::relu: return u ? x : b_.CreateBinaryIntrinsic(smax, x, zero);
      case Op::bit_not: return b_.CreateNot(x);
      case Op::add: return t == DType::b1 ? b_.CreateOr(x, y) : b_.CreateAdd(x, y);
      case Op::sub: return t == DType::b1 ? b_.CreateXor(x, y) : b_.CreateSub(x, y);
      case Op::mul: return t == DType::b1 ? b_.CreateAnd(x, y) : b_.CreateMul(x, y);
      case Op::div: case Op::floor_div: case Op::mod: case Op::fmod: return divide(op, x, y, u);
      case Op::min: return b_.CreateSelect(u ? b_.CreateICmpULT(x, y) : b_.CreateICmpSLT(x, y), x, y);
      case Op::max: return b_.CreateSelect(u ? b_.CreateICmpUGT(x, y) : b_.CreateICmpSGT(x, y), x, y);
      case Op::bit_and: return b_.CreateAnd(x, y);
      case Op::bit_or: return b_.CreateOr(x, y);
      case Op::bit_xor: return b_.CreateXor(x, y);
      case Op::shl: case Op::shr: return shift(op, x, y, u);
      case Op::pow: return t == DType::b1 ? b_.CreateOr(x, b_.CreateNot(y)) : int_pow(x, y, u);
      default: return nullptr;
    }
  }

  // A divisor of zero is the host's to refuse; here it must only not trap, nor may the lowest number by -1.
  V divide(Op op, V x, V y, bool u) {
    V zero = llvm::Constant::getNullValue(x->getType()), one = llvm::ConstantInt::get(x->getType(), 1);
    y = b_.CreateSelect(b_.CreateICmpEQ(y, zero), one, y);
    bool remainder = op == Op::mod || op == Op::fmod;
    if (u) return remainder ? b_.CreateURem(x, y) : b_.CreateUDiv(x, y);
    V negated = b_.CreateICmpEQ(y, llvm::Constant::getAllOnesValue(y->getType()));
    V safe = b_.CreateSelect(negated, one, y);
    V q = b_.CreateSelect(negated, b_.CreateNeg(x), b_.CreateSDiv(x, safe));
    V r = b_.CreateSub(x, b_.CreateMul(q, y));
    if (op == Op::div) return q;
    if (op == Op::fmod) return r;
    V crosses = b_.CreateAnd(b_.CreateICmpNE(r, zero), b_.CreateICmpNE(b_.CreateICmpSLT(r, zero), b_.CreateICmpSLT(y, zero)));
    return op == Op::mod ? b_.CreateSelect(crosses, b_.CreateAdd(r, y), r) : b_.CreateSelect(crosses, b_.CreateSub(q, one), q);
  }

  // A shift by the width or more gives 0, or the sign for a right shift of a signed type; a negative one counts as such.
  V shift(Op op, V x, V y, bool u) {
    Type* t = x->getType();
    auto width = t->getScalarSizeInBits();
    V zero = llvm::Constant::getNullValue(t);
    V too_far = b_.CreateICmpUGE(y, llvm::ConstantInt::get(t, width));
    V in_range = b_.CreateSelect(too_far, zero, y);
    if (op == Op::shl) return b_.CreateSelect(too_far, zero, b_.CreateShl(x, in_range));
    if (u) return b_.CreateSelect(too_far, zero, b_.CreateLShr(x, in_range));
    return b_.CreateAShr(x, b_.CreateSelect(too_far, llvm::ConstantInt::get(t, width - 1), y));
  }

  // By squaring, 64 steps at most; a negative exponent gives what 1/x rounds to.
  V int_pow(V x, V y, bool u) {
    Type* t = x->getType();
    V zero = llvm::Constant::getNullValue(t), one = llvm::ConstantInt::get(t, 1), minus = llvm::Constant::getAllOnesValue(t);
    V result = one, base = x, e = y;
    for (unsigned bit = 0; bit < t->getScalarSizeInBits(); ++bit) {
      V odd = b_.CreateICmpNE(b_.CreateAnd(e, one), zero);
      result = b_.CreateSelect(odd, b_.CreateMul(result, base), result);
      base = b_.CreateMul(base, base);
      e = b_.CreateLShr(e, one);
    }
    if (u) return result;
    V odd = b_.CreateICmpNE(b_.CreateAnd(y, one), zero);
    V of_minus_one = b_.CreateSelect(odd, minus, one);
    V inverse = b_.CreateSelect(b_.CreateICmpEQ(x, one), one, b_.CreateSelect(b_.CreateICmpEQ(x, minus), of_minus_one, zero));
    return b_.CreateSelect(b_.CreateICmpSLT(y, zero), inverse, result);
  }

  V compare(Op op, const std::vector<V>& a, DType t) {
    using P = llvm::CmpInst::Predicate;
    if (op == Op::is_nan) return is_floating(t) ? b_.CreateFCmpUNO(a[0], a[0]) : splat_like(b_.getInt1(false), a[0]);
    auto pick = [&](P f, P s, P u) { return is_floating(t) ? b_.CreateFCmp(f, a[0], a[1]) : b_.CreateICmp(is_unsigned(t) ? u : s, a[0], a[1]); };
    switch (op) {
      case Op::eq: return pick(P::FCMP_OEQ, P::ICMP_EQ, P::ICMP_EQ);
      case Op::ne: return pick(P::FCMP_UNE, P::ICMP_NE, P::ICMP_NE);
      case Op::lt: return pick(P::FCMP_OLT, P::ICMP_SLT, P::ICMP_ULT);
      case Op::le: return pick(P::FCMP_OLE, P::ICMP_SLE, P::ICMP_ULE);
      case Op::gt: return pick(P::FCMP_OGT, P::ICMP_SGT, P::ICMP_UGT);
      default: return pick(P::FCMP_OGE, P::ICMP_SGE, P::ICMP_UGE);
    }
  }
  V splat_like(V v, V like) { return is_vector(like) ? splat(v) : v; }

  V cast(V v, DType from, DType to) {
    if (from == to || (is_low_precision(from) && to == DType::f32)) return v;
    if (is_low_precision(to) && (from == DType::f32 || is_low_precision(from))) return v;  // rounded when stored, or by strict
    Type* t = scalar_type(to);
    if (is_vector(v)) t = vector_of(t);
    bool from_float = is_floating(from), to_float = is_floating(to);
    if (to == DType::b1) {
      V zero = llvm::Constant::getNullValue(v->getType());
      return from_float ? b_.CreateFCmpUNE(v, zero) : b_.CreateICmpNE(v, zero);
    }
    if (from_float && to_float) return b_.CreateFPCast(v, t);
    if (to_float) return is_unsigned(from) ? b_.CreateUIToFP(v, t) : b_.CreateSIToFP(v, t);
    if (from_float) return float_to_int(v, to, t);
    return b_.CreateIntCast(v, t, !is_unsigned(from));
  }

  // What x86's conversions give: out of range is the lowest number of the width converted through.
  V float_to_int(V v, DType to, Type* t) {
    Type* wide = to == DType::i64 || to == DType::u8 ? b_.getInt64Ty() : b_.getInt32Ty();
    Type* wide_t = is_vector(v) ? vector_of(wide) : wide;
    double limit = wide == b_.getInt64Ty() ? 9223372036854775808.0 : 2147483648.0;
    V in_range = b_.CreateAnd(b_.CreateFCmpOGE(v, fp(v->getType(), -limit)), b_.CreateFCmpOLT(v, fp(v->getType(), limit)));
    V converted = b_.CreateFPToSI(b_.CreateSelect(in_range, v, fp(v->getType(), 0)), wide_t);
    V lowest = llvm::ConstantInt::get(wide_t, llvm::APInt::getSignedMinValue(wide->getIntegerBitWidth()));
    return b_.CreateIntCast(b_.CreateSelect(in_range, converted, lowest), t, true);
  }

  V bitcast(V v, DType from, DType to) {
    V raw = to_memory(v, from);
    Type* t = memory_type(to);
    return to_compute(b_.CreateBitCast(raw, is_vector(raw) ? vector_of(t) : t), to);
  }

  // ---- reductions ----
  struct Accumulator {
    llvm::AllocaInst* value;
    llvm::AllocaInst* position = nullptr;
  };

  Type* accumulator_type(const KernelExpr& r) {
    DType t = is_index_reduction(r.op) ? k_.exprs[static_cast<size_t>(r.args[0])].dtype : r.dtype;
    return scalar_type(t);
  }
  DType reduced_dtype(const KernelExpr& r) { return is_index_reduction(r.op) ? k_.exprs[static_cast<size_t>(r.args[0])].dtype : r.dtype; }

  V identity(const KernelExpr& r) {
    DType t = reduced_dtype(r);
    Type* type = scalar_type(t);
    bool is_float = is_floating(t);
    switch (r.op) {
      case Op::reduce_sum: return is_float ? fp(type, 0) : llvm::Constant::getNullValue(type);
      case Op::reduce_prod: return is_float ? fp(type, 1) : llvm::ConstantInt::get(type, 1);
      case Op::reduce_max: case Op::reduce_argmax:
        if (is_float) return fp(type, -std::numeric_limits<double>::infinity());
        return is_unsigned(t) ? llvm::Constant::getNullValue(type) : llvm::ConstantInt::get(type, llvm::APInt::getSignedMinValue(type->getIntegerBitWidth()));
      default:
        if (is_float) return fp(type, std::numeric_limits<double>::infinity());
        return is_unsigned(t) ? llvm::Constant::getAllOnesValue(type) : llvm::ConstantInt::get(type, llvm::APInt::getSignedMaxValue(type->getIntegerBitWidth()));
    }
  }

  V combine(const KernelExpr& r, V a, V b) {
    switch (r.op) {
      case Op::reduce_sum: return binary(Op::add, a, b, r.dtype);
      case Op::reduce_prod: return binary(Op::mul, a, b, r.dtype);
      case Op::reduce_max: return binary(Op::max, a, b, r.dtype);
      default: return binary(Op::min, a, b, r.dtype);
    }
  }
  V binary(Op op, V a, V b, DType t) {
    even_out(a, b);
    return is_floating(t) ? float_op(op, {a, b}) : int_op(op, {a, b}, t);
  }

  // Whether (b, at q) replaces (a, at p): better, or NaN, or equal and earlier. Position -1 is an empty slot.
  V replaces(const KernelExpr& r, V a, V p, V b, V q) {
    DType t = reduced_dtype(r);
    V better = compare(r.op == Op::reduce_argmax ? Op::gt : Op::lt, {b, a}, t), equal = compare(Op::eq, {a, b}, t);
    if (is_floating(t)) {
      V a_nan = b_.CreateFCmpUNO(a, a), b_nan = b_.CreateFCmpUNO(b, b);
      better = b_.CreateOr(better, b_.CreateAnd(b_nan, b_.CreateNot(a_nan)));
      equal = b_.CreateOr(equal, b_.CreateAnd(a_nan, b_nan));
      better = b_.CreateAnd(better, b_.CreateNot(a_nan));
    }
    V minus = llvm::Constant::getAllOnesValue(p->getType());
    V take = b_.CreateOr(better, b_.CreateAnd(equal, b_.CreateICmpSLT(q, p)));
    take = b_.CreateOr(take, b_.CreateICmpEQ(p, minus));
    return b_.CreateAnd(take, b_.CreateICmpNE(q, minus));
  }

  Accumulator& accumulator(int r, unsigned slot) {
    auto& list = accumulators_[r];
    while (list.size() <= slot) {
      const auto& e = k_.exprs[static_cast<size_t>(r)];
      Accumulator a{local(vector_of(accumulator_type(e)), "sum")};
      if (is_index_reduction(e.op)) a.position = local(vector_of(b_.getInt64Ty()), "at");
      list.push_back(a);
    }
    return list[slot];
  }

  void reset(int r, unsigned slot) {
    Accumulator& a = accumulator(r, slot);
    b_.CreateStore(splat(identity(k_.exprs[static_cast<size_t>(r)])), a.value);
    if (a.position) b_.CreateStore(llvm::Constant::getAllOnesValue(vector_of(b_.getInt64Ty())), a.position);
  }

  void accumulate(int r, unsigned slot) {
    const auto& e = k_.exprs[static_cast<size_t>(r)];
    Accumulator& a = accumulator(r, slot);
    V x = splat(value(e.args[0]));
    V old = b_.CreateLoad(x->getType(), a.value);
    if (a.position) {
      V at = splat(position(e.access.index)), before = b_.CreateLoad(at->getType(), a.position);
      if (mask_) at = b_.CreateSelect(mask_, at, llvm::Constant::getAllOnesValue(at->getType()));
      V take = replaces(e, old, before, x, at);
      b_.CreateStore(b_.CreateSelect(take, x, old), a.value);
      b_.CreateStore(b_.CreateSelect(take, at, before), a.position);
      return;
    }
    if (mask_ && vec_reduced_) x = b_.CreateSelect(mask_, x, splat(identity(e)));
    b_.CreateStore(combine(e, old, x), a.value);
  }

  // The reduction's value from its accumulators: over the lanes too if the vector axis is reduced.
  V result(int r, unsigned slots) {
    const auto& e = k_.exprs[static_cast<size_t>(r)];
    V v = b_.CreateLoad(vector_of(accumulator_type(e)), accumulator(r, 0).value);
    if (accumulator(r, 0).position) return index_result(r, v);
    if (!vec_reduced_) return v;
    for (unsigned s = 1; s < slots; ++s) v = combine(e, v, b_.CreateLoad(v->getType(), accumulator(r, s).value));
    for (unsigned width = lanes_ / 2; width >= 1; width /= 2) {
      std::vector<int> low, high;
      for (unsigned i = 0; i < width; ++i) low.push_back(static_cast<int>(i)), high.push_back(static_cast<int>(i + width));
      V x = b_.CreateShuffleVector(v, low), y = b_.CreateShuffleVector(v, high);
      v = combine(e, x, y);
    }
    return b_.CreateExtractElement(v, uint64_t{0});
  }

  V index_result(int r, V v) {
    const auto& e = k_.exprs[static_cast<size_t>(r)];
    V at = b_.CreateLoad(vector_of(b_.getInt64Ty()), accumulator(r, 0).position);
    if (!vec_reduced_) return at;
    V best = b_.CreateExtractElement(v, uint64_t{0}), best_at = b_.CreateExtractElement(at, uint64_t{0});
    for (unsigned i = 1; i < lanes_; ++i) {
      V x = b_.CreateExtractElement(v, uint64_t{i}), q = b_.CreateExtractElement(at, uint64_t{i});
      V take = replaces(e, best, best_at, x, q);
      best = b_.CreateSelect(take, x, best);
      best_at = b_.CreateSelect(take, q, best_at);
    }
    return best_at;
  }

  // ---- loops ----
  void emit_unit(V unit) {
    V rest = unit;
    V block = nullptr;
    if (!vec_reduced_) {
      V n = integer(blocks_, false);
      block = b_.CreateURem(rest, n);
      rest = b_.CreateUDiv(rest, n);
    }
    for (size_t i = outer_.size(); i-- > 0;) {
      const auto& axis = k_.axes[outer_[i]];
      V n = integer(axis.extent, false);
      point_[axis.id] = i == 0 ? rest : b_.CreateURem(rest, n);
      rest = b_.CreateUDiv(rest, n);
    }
    if (vec_reduced_) return emit_stages();
    V extent = integer(k_.axes[vec_].extent, false), begin = b_.CreateMul(block, i64(block_));
    V end = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateAdd(begin, i64(block_)), extent);
    vector_loop(begin, end, has_reduced_ ? 4 : 1, [&](unsigned n) { emit_columns(n); });
  }

  // Runs body over [begin, end) of the vector axis: `unroll` vectors at a time while they are whole, then one by one, the
  // last masked. body(n) must do the n vectors that start at the current point.
  void vector_loop(V begin, V end, unsigned unroll, const std::function<void(unsigned)>& body) {
    SymbolId axis = k_.axes[vec_].id;
    auto whole = [&](V from, unsigned n) {
      V step = i64(static_cast<int64_t>(lanes_) * n);
      V last = b_.CreateSub(end, b_.CreateURem(b_.CreateSub(end, from), step));
      loop("vector", from, last, step, [&](V i) {
        point_[axis] = i;
        fresh_values();
        body(n);
      });
      return last;
    };
    mask_ = nullptr;
    auto extent = k_.axes[vec_].extent.maybe_constant();
    if (unroll > 1 && !(extent && *extent < static_cast<int64_t>(lanes_) * unroll)) begin = whole(begin, unroll);
    if (!(extent && *extent < static_cast<int64_t>(lanes_))) begin = whole(begin, 1);
    bool no_tail = extent && *extent % static_cast<int64_t>(lanes_) == 0 && (vec_reduced_ || block_ % lanes_ == 0);
    if (no_tail) return fresh_values();
    when(b_.CreateICmpSLT(begin, end), [&] {
      point_[axis] = begin;
      mask_ = b_.CreateICmpULT(iota(), splat(b_.CreateSub(end, begin)));
      fresh_values();
      body(1);
      mask_ = nullptr;
    });
    fresh_values();
  }

  // Values hold at one point only; reductions that are finished stay.
  void fresh_values() {
    values_.clear();
    for (const auto& [r, v] : finished_) values_[r] = v;
  }

  void for_reduced_axes(size_t from, const std::function<void()>& body) {
    for (size_t a = from; a < k_.axes.size(); ++a) {
      if (!k_.axes[a].reduced || a == vec_) continue;
      loop("reduce", i64(0), integer(k_.axes[a].extent, false), i64(1), [&](V i) {
        point_[k_.axes[a].id] = i;
        for_reduced_axes(a + 1, body);
      });
      return;
    }
    body();
  }

  // Rows: the vector axis is reduced.
  void emit_stages() {
    constexpr unsigned kUnroll = 4;
    finished_.clear();
    filled_.clear();
    fresh_values();
    for (const auto& stage : stages_) {
      bool index = std::any_of(stage.begin(), stage.end(), [&](int r) { return is_index_reduction(k_.exprs[static_cast<size_t>(r)].op); });
      unsigned unroll = index ? 1 : kUnroll;
      for (int r : stage)
        for (unsigned s = 0; s < unroll; ++s) reset(r, s);
      for_reduced_axes(0, [&] {
        vector_loop(i64(0), integer(k_.axes[vec_].extent, false), unroll, [&](unsigned n) { for_vectors(n, [&](unsigned s) {
          for (int r : stage) accumulate(r, s);
        }); });
      });
      fresh_values();
      for (int r : stage) finished_[r] = result(r, unroll);
      fresh_values();
      for (const auto& [e, row] : cached_)
        if (needs(stage, e)) filled_.insert(e);
    }
    store_rows();
  }

  bool needs(const std::vector<int>& stage, int e) const {
    std::vector<bool> seen(k_.exprs.size());
    for (int r : stage) collect(k_.exprs[static_cast<size_t>(r)].args[0], seen);
    return seen[static_cast<size_t>(e)];
  }

  void store_rows() {
    bool any_inner = false;
    for (const auto& s : k_.stores) any_inner |= inner(s.expr) || moves_with_reduced(s.access.index);
    if (any_inner)
      for_reduced_axes(0, [&] {
        vector_loop(i64(0), integer(k_.axes[vec_].extent, false), 1, [&](unsigned) {
          for (const auto& s : k_.stores)
            if (inner(s.expr) || moves_with_reduced(s.access.index)) store(s);
        });
      });
    fresh_values();
    for (const auto& s : k_.stores)
      if (!inner(s.expr) && !moves_with_reduced(s.access.index)) store(s);
  }

  bool moves_with_reduced(const SymInt& index) const {
    return std::any_of(k_.axes.begin(), k_.axes.end(), [&](const KernelAxis& a) { return a.reduced && index.contains(a.id); });
  }

  // n vectors from the current point on: the vector axis advances by the lanes.
  void for_vectors(unsigned n, const std::function<void(unsigned)>& body) {
    SymbolId axis = k_.axes[vec_].id;
    V start = point_[axis];
    for (unsigned s = 0; s < n; ++s) {
      point_[axis] = b_.CreateAdd(start, i64(static_cast<int64_t>(s) * lanes_));
      fresh_values();
      if (s < column_values_.size())
        for (const auto& [r, v] : column_values_[s]) values_[r] = v;
      body(s);
    }
    point_[axis] = start;
  }

  // Columns: each lane is a result of its own; the reduced axes are loops around n vectors.
  void emit_columns(unsigned n) {
    column_values_.assign(n, {});
    finished_.clear();
    for (const auto& stage : stages_) {
      for (int r : stage)
        for (unsigned s = 0; s < n; ++s) reset(r, s);
      for_reduced_axes(0, [&] { for_vectors(n, [&](unsigned s) { for (int r : stage) accumulate(r, s); }); });
      for (unsigned s = 0; s < n; ++s)
        for (int r : stage) {
          const auto& e = k_.exprs[static_cast<size_t>(r)];
          auto& a = accumulator(r, s);
          column_values_[s][r] = a.position ? b_.CreateLoad(vector_of(b_.getInt64Ty()), a.position) : b_.CreateLoad(vector_of(accumulator_type(e)), a.value);
        }
    }
    bool any_inner = false;
    auto is_inner = [&](const KernelStore& s) { return inner(s.expr) || moves_with_reduced(s.access.index); };
    for (const auto& s : k_.stores) any_inner |= is_inner(s);
    if (any_inner) for_reduced_axes(0, [&] { for_vectors(n, [&](unsigned) { for (const auto& s : k_.stores) if (is_inner(s)) store(s); }); });
    for_vectors(n, [&](unsigned) { for (const auto& s : k_.stores) if (!is_inner(s)) store(s); });
    column_values_.clear();
  }

  Kernel k_;
  CodegenOptions options_;
  llvm::LLVMContext& context_;
  llvm::IRBuilder<> b_;
  llvm::Function* fn_;
  BasicBlock* entry_;
  KernelShape shape_;
  std::vector<std::vector<bool>> uses_;
  size_t vec_ = 0;              // the axis that is vectorised
  bool vec_reduced_ = false, has_reduced_ = false;
  unsigned lanes_ = 16;
  int64_t block_ = 0;           // elements of the vector axis in one unit
  SymInt blocks_;
  std::vector<size_t> outer_;   // axes that units count
  std::vector<std::vector<int>> stages_;
  std::map<int, int64_t> cached_;  // expression -> row of scratch memory
  std::set<int> filled_;
  std::vector<V> buffers_, symbols_;
  llvm::AllocaInst* error_ = nullptr;
  std::map<SymbolId, V> point_;
  V mask_ = nullptr;
  std::map<int, V> values_;
  std::map<int, V> finished_;
  std::vector<std::map<int, V>> column_values_;
  std::map<int, std::vector<Accumulator>> accumulators_;
};

}  // namespace

KernelShape emit_kernel(const Kernel& kernel, llvm::Module& module, const std::string& name, const CodegenOptions& options) {
  return Emitter(kernel, module, name, options).run();
}

}  // namespace broach::cpu

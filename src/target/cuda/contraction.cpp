#include "target/cuda/contraction.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>

#include "support/error.h"
#include "support/recently_used.h"
#include "target/cuda/libraries.h"
#include "target/cuda/odd_product.h"
#include "target/cuda/product_form.h"
#include "target/cuda/routine.h"

namespace broach::cuda {

namespace {

// Numbers of cublasLt.h, cublas_api.h and library_types.h.
enum DescAttribute { kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8 };
enum LayoutAttribute { kBatchCount = 5, kBatchStride = 6 };
enum PreferenceAttribute { kMostWorkspace = 1, kReductionSchemes = 3, kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7, kAlignmentD = 8 };
enum EpilogueFlags { kPlain = 1, kRelu = 2, kBias = 4, kGelu = 32 };
enum ComputeType { kCompute32 = 68, kCompute64 = 70, kComputeTf32 = 77 };
constexpr size_t kWorkspace = size_t{32} << 20;

struct TypeRow {
  DType dtype;
  int number;
};
constexpr TypeRow kTypes[] = {{DType::f32, 0}, {DType::f64, 1}, {DType::f16, 2}, {DType::bf16, 14}};

int library_type(DType t) { return std::ranges::find(kTypes, t, &TypeRow::dtype)->number; }

void require(int status, const char* what) {
  if (status != 0) fail("cuda: cuBLASLt: ", what, " failed (", status, ")");
}

CublasLt::Handle handle_of(int device) {
  static std::array<std::once_flag, 128> once;
  static std::array<CublasLt::Handle, 128> handles;
  const auto at = static_cast<size_t>(device);
  std::call_once(once.at(at), [&] { require(CublasLt::get().create(&handles[at]), "opening the library"); });
  return handles[at];
}

// Descriptions of the library's, for one form of a product. One call at a time: the bias is part of the description. `accumulates`: it
// is added to what is there.
class LibraryCall {
 public:
  LibraryCall(const LibraryProduct& product, bool accumulates, DType dtype, const ContractionStep& step, ContractionRules::Math math)
      : product_(product), accumulates_(accumulates) {
    const bool is_double = dtype == DType::f64;
    const int type = library_type(dtype);
    const int compute = is_double ? kCompute64 : dtype == DType::f32 && math == ContractionRules::Math::tf32 ? kComputeTf32 : kCompute32;
    require(lt_.desc_create(&desc_, compute, is_double ? 1 : 0), "describing a product");
    // In columns, the weight is the first matrix.
    const int transposes[2] = {product.weight.transposed, product.x.transposed};
    set(desc_, lt_.desc_set, kTransposeA, transposes[0]);
    set(desc_, lt_.desc_set, kTransposeB, transposes[1]);
    int epilogue = step.bias ? int{kBias} : 0;
    for (const Epilogue& e : step.epilogue)
      if (!e.operand) epilogue |= e.op == Op::relu ? int{kRelu} : int{kGelu};
    set(desc_, lt_.desc_set, kEpilogue, epilogue == 0 ? int{kPlain} : epilogue);
    a_ = layout(type, product.weight), b_ = layout(type, product.x), d_ = layout(type, product.result);
    c_ = layout(type, accumulates ? product.result : product.added);
    is_double_ = is_double;
  }
  ~LibraryCall() {
    for (CublasLt::Layout l : {a_, b_, c_, d_}) lt_.layout_destroy(l);
    lt_.desc_destroy(desc_);
  }
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;

  // False if the library has nothing for it.
  bool run(const ContractionArgs& args, int64_t bytes, const RunContext& run) const {
    std::lock_guard lock(mutex_);
    if (args.bias) set(desc_, lt_.desc_set, kBiasPointer, args.bias);
    const bool adds = product_.adds && !accumulates_;
    const void* added = adds ? args.epilogue[0] : args.result;
    const CublasLt::Found* found = algorithm(alignment_of(args, added, bytes), run);
    if (!found) return false;
    const MemoryLease workspace(*run.memory, static_cast<int64_t>(found->workspace), run.queue);
    const double one = 1, zero = 0;
    const float one_f = 1, zero_f = 0;
    const void* alpha = is_double_ ? static_cast<const void*>(&one) : &one_f;
    const void* none = is_double_ ? static_cast<const void*>(&zero) : &zero_f;
    for (const auto& s : product_.starts) {
      auto at = [&](const void* data, int64_t start) { return static_cast<const std::byte*>(data) + start * bytes; };
      auto* result = static_cast<std::byte*>(args.result) + s.result * bytes;
      require(lt_.matmul(handle_of(run.device.index), desc_, alpha, at(args.operands[1], s.weight), a_, at(args.operands[0], s.x), b_,
                         adds || accumulates_ ? alpha : none, at(added, adds ? s.added : s.result), c_, result, d_, &found->algorithm,
                         workspace.data(), found->workspace, static_cast<Stream>(run.queue)),
              "a product");
    }
    return true;
  }

 private:
  template <class Object, class Set, class T>
  static void set(Object object, Set function, int attribute, const T& value) {
    require(function(object, attribute, &value, sizeof value), "describing a product");
  }

  CublasLt::Layout layout(int type, const ColumnMajor& m) const {
    CublasLt::Layout out = nullptr;
    require(lt_.layout_create(&out, type, static_cast<uint64_t>(m.rows), static_cast<uint64_t>(m.columns), m.leading),
            "describing a matrix");
    if (product_.batches > 1) {
      set(out, lt_.layout_set, kBatchCount, static_cast<int32_t>(product_.batches));
      set(out, lt_.layout_set, kBatchStride, m.batch_stride);
    }
    return out;
  }

  // The bytes to which all addresses are aligned, 256 at most.
  unsigned alignment_of(const ContractionArgs& args, const void* added, int64_t bytes) const {
    uintptr_t bits = 256;
    for (const void* p : {static_cast<const void*>(args.operands[0]), static_cast<const void*>(args.operands[1]),
                          static_cast<const void*>(args.result), added, static_cast<const void*>(args.bias)})
      bits |= reinterpret_cast<uintptr_t>(p);
    for (const auto& s : product_.starts) bits |= static_cast<uintptr_t>((s.weight | s.x | s.result | s.added) * bytes);
    return 1u << std::countr_zero(bits);
  }

  // By the library's own estimate. It adds up in the type that it computes in, never in that of the result.
  const CublasLt::Found* algorithm(unsigned alignment, const RunContext& run) const {
    auto [at, fresh] = found_.try_emplace({alignment, run.device.index});
    if (!fresh) return at->second ? &*at->second : nullptr;
    CublasLt::Preference preference = nullptr;
    require(lt_.preference_create(&preference), "describing a search");
    set(preference, lt_.preference_set, kMostWorkspace, kWorkspace);
    set(preference, lt_.preference_set, kReductionSchemes, uint32_t{1 | 2});
    for (int a : {kAlignmentA, kAlignmentB, kAlignmentC, kAlignmentD}) set(preference, lt_.preference_set, a, alignment);
    CublasLt::Found found{};
    int count = 0;
    const int status = lt_.search(handle_of(run.device.index), desc_, a_, b_, c_, d_, preference, 1, &found, &count);
    lt_.preference_destroy(preference);
    if (status == 0 && count > 0 && found.status == 0) at->second = found;
    return at->second ? &*at->second : nullptr;
  }

  const CublasLt& lt_ = CublasLt::get();
  LibraryProduct product_;
  bool accumulates_, is_double_ = false;
  CublasLt::Desc desc_ = nullptr;
  CublasLt::Layout a_ = nullptr, b_ = nullptr, c_ = nullptr, d_ = nullptr;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<unsigned, int>, std::optional<CublasLt::Found>> found_;  // by alignment and device
};

struct Plan {
  ProductForm form;
  bool is_empty = false;
  LibraryProduct product;
  std::optional<OddProduct> odd;
  std::vector<std::unique_ptr<const LibraryCall>> calls;  // one for each part of an odd product; none: by the host's library

  bool copies() const { return odd && odd->copies(); }
};

// A matrix of two-byte elements in memory of its own, if it is to be copied.
class Copied {
 public:
  Copied(bool is_copied, void* data, const ColumnMajor& from, const ColumnMajor& to, const RunContext& run)
      : data_(data), from_(from), to_(to), run_(run), memory_(*run.memory, is_copied ? 2 * to.leading * to.columns : 0, run.queue) {}
  void* data() const { return memory_.data() ? memory_.data() : data_; }
  void fill() const {
    if (memory_.data()) copy_rows(memory_.data(), data_, {to_.columns, to_.rows, to_.leading, from_.leading}, run_);
  }
  // Rows, in columns, from `first` on.
  void give(int64_t first, int64_t rows) const {
    constexpr int64_t kBytes = 2;
    if (memory_.data())
      copy_rows(static_cast<std::byte*>(data_) + first * kBytes, memory_.data(), {to_.columns, rows, from_.leading, to_.leading}, run_);
  }

 private:
  void* data_;
  const ColumnMajor &from_, &to_;
  const RunContext& run_;
  MemoryLease memory_;
};

bool run_parts(const Plan& plan, const ContractionArgs& args, int64_t bytes, const RunContext& run) {
  const OddProduct& odd = *plan.odd;
  const Copied x(odd.copies_x, args.operands[0], plan.product.x, odd.x, run),
      weight(odd.copies_weight, args.operands[1], plan.product.weight, odd.weight, run),
      result(odd.copies_result, args.result, plan.product.result, odd.result, run);
  x.fill(), weight.fill();
  void* operands[2] = {x.data(), weight.data()};
  size_t i = 0;
  for (const OddProduct::Chunk& chunk : odd.chunks) {
    for (; i < chunk.end; ++i) {
      ContractionArgs part = args;
      part.operands = operands, part.result = result.data();
      if (args.bias) part.bias = static_cast<std::byte*>(args.bias) + odd.parts[i].bias_start * bytes;
      if (plan.calls[i]->run(part, bytes, run)) continue;
      if (i == 0) return false;
      fail("cuda: cuBLASLt has nothing for what is left of a product of odd size");
    }
    result.give(chunk.first, chunk.rows);
  }
  return true;
}

class CudaContraction : public CompiledContraction {
 public:
  CudaContraction(const ContractionStep& step, const CompileSettings& settings) : step_(step), settings_(settings) {
    settings_.progress = nullptr;  // what is compiled later is nobody's progress
    if (has_fixed_sizes(step)) fixed_ = plan({});
  }

  void run(const ContractionArgs& args, const RunContext& run) const override {
    const auto plan = plan_for(run.symbols);
    if (plan->is_empty) return;
    if (run.recording && plan->copies()) unsupported("cuda: a product whose operands are copied is not recorded");
    const int64_t bytes = size_of(plan->form.result.dtype);
    if (!plan->calls.empty() && (plan->odd ? run_parts(*plan, args, bytes, run) : plan->calls[0]->run(args, bytes, run))) return;
    if (run.recording) unsupported("cuda: a product of the host's library is not recorded");
    if (!settings_.host_contraction) fail("cuda: cuBLASLt has nothing for a product of ", step_.result.type.str());
    const ProductForm& f = plan->form;
    std::vector<HostWindow> operands;
    for (size_t i = 0; i < f.operands.size(); ++i) operands.push_back(f.operands[i].at(args.epilogue[i]));
    settings_.host_contraction({step_.operation,
                                f.x.at(args.operands[0]),
                                f.weight.at(args.operands[1]),
                                f.bias ? f.bias->at(args.bias) : HostWindow{},
                                f.result.at(args.result),
                                {},
                                {},
                                step_.epilogue,
                                operands,
                                run.device});
  }

  // What the host's library launches goes elsewhere, and memory for whole matrices would be held for good.
  bool records() const override { return !fixed_ || fixed_->is_empty || (!fixed_->calls.empty() && !fixed_->copies()); }

  std::string pick(std::span<const int64_t> symbols) const override {
    const auto plan = plan_for(symbols);
    return plan->is_empty ? "nothing to do" : plan->calls.empty() ? "aten" : plan->odd ? "cublaslt in parts" : "cublaslt";
  }

 private:
  std::shared_ptr<const Plan> plan(std::span<const int64_t> symbols) const {
    auto out = std::make_shared<Plan>();
    out->form = product_form(step_, symbols);
    out->is_empty = std::ranges::any_of(out->form.result.sizes, [](int64_t n) { return n == 0; });
    if (out->is_empty) return out;
    const auto product = library_product(out->form);
    if (product) add_calls(*product, *out);
    else if (!settings_.host_contraction) unsupported("cuda: cuBLASLt takes no product whose operands lie as in ", step_.result.type.str());
    return out;
  }

  void add_calls(const LibraryProduct& product, Plan& plan) const {
    const DType dtype = plan.form.result.dtype;
    auto add = [&](const LibraryProduct& p, bool accumulates) {
      plan.calls.push_back(std::make_unique<const LibraryCall>(p, accumulates, dtype, step_, settings_.contractions.dot));
    };
    const bool has_epilogue = step_.bias || std::ranges::any_of(step_.epilogue, [](const Epilogue& e) { return !e.operand; });
    plan.product = product;
    plan.odd = odd_product(product, dtype, has_epilogue || settings_.strict);
    if (!plan.odd) return add(product, false);
    for (const auto& part : plan.odd->parts) add(part.product, part.accumulates);
  }

  std::shared_ptr<const Plan> plan_for(std::span<const int64_t> symbols) const {
    if (fixed_) return fixed_;
    std::vector<int64_t> key(symbols.begin(), symbols.end());
    std::lock_guard lock(mutex_);
    if (auto known = plans_.find(key)) return *known;
    return plans_.insert(std::move(key), plan(symbols));
  }

  ContractionStep step_;
  CompileSettings settings_;
  std::shared_ptr<const Plan> fixed_;
  mutable std::mutex mutex_;
  mutable RecentlyUsed<std::vector<int64_t>, std::shared_ptr<const Plan>> plans_{64};
};

}  // namespace

bool has_products(DType dtype) { return std::ranges::find(kTypes, dtype, &TypeRow::dtype) != std::end(kTypes); }

// Behind a product there is one operation, before which a bias may be added. The library makes 0 of a NaN that relu would keep.
ContractionAbility product_ability(DType dtype) {
  ContractionAbility a;
  a.sums_one_row = dtype != DType::f64;
  a.activations = {Op::relu, Op::gelu_tanh}, a.exact_activations = {Op::gelu_tanh}, a.binaries = {Op::add}, a.most_epilogues = 1;
  return a;
}

std::shared_ptr<const CompiledContraction> make_contraction(const ContractionStep& step, const CompileSettings& settings) {
  if (step.operation.op != Op::dot || !has_products(step.result.type.dtype) || !step.side_results.empty()) return nullptr;
  return std::make_shared<CudaContraction>(step, settings);
}

}  // namespace broach::cuda

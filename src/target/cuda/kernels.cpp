#include "target/cuda/kernels.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "support/error.h"
#include "support/log.h"
#include "support/recently_used.h"
#include "target/cuda/code.h"
#include "target/cuda/emit_kernel.h"
#include "target/cuda/launch_graph.h"
#include "target/cuda/libraries.h"
#include "target/cuda/prelude.h"
#include "target/cuda/units.h"

namespace broach::cuda {

namespace {

// How a kernel is launched for a vector of symbols.
struct LaunchSizes {
  unsigned blocks = 0;
  bool fits_narrow = true;  // indices are below 2^31
};

// The code of a kernel for one variant.
struct Built {
  KernelPlan plan;
  std::string name;
  std::shared_ptr<const Code> code;
  Function function = nullptr;
  std::vector<std::pair<size_t, uintptr_t>> alignments;  // buffers, and the bits of their address that must be 0

  Built(KernelPlan p, std::string n, std::shared_ptr<const Code> c)
      : plan(std::move(p)), name(std::move(n)), code(std::move(c)), function(code->function(name)) {
    auto meet = [&](const Access& a) {
      const int64_t bytes = size_of(plan.kernel.buffers[static_cast<size_t>(a.buffer)]);
      if (plan.is_packed(a)) alignments.emplace_back(a.buffer, static_cast<uintptr_t>(std::min<int64_t>(16, plan.lanes * bytes)) - 1);
    };
    for (const KernelExpr& e : plan.kernel.exprs)
      if (e.kind == KernelExpr::Kind::load && e.predicate < 0) meet(e.access);
    for (const KernelStore& s : plan.kernel.stores) meet(s.access);
  }

  bool is_aligned(void* const* buffers) const {
    return std::ranges::all_of(alignments, [&](const auto& a) { return (reinterpret_cast<uintptr_t>(buffers[a.first]) & a.second) == 0; });
  }

  // Of a block, along x and y.
  std::pair<unsigned, unsigned> threads() const {
    const auto width = static_cast<unsigned>(plan.width), team = static_cast<unsigned>(plan.team);
    return plan.shape == KernelPlan::Shape::rows ? std::pair(team, width) : std::pair(width, team);
  }

  LaunchSizes sizes(std::span<const int64_t> symbols) const {
    constexpr int64_t kNarrow = (int64_t{1} << 31) - (int64_t{1} << 21);
    const int64_t units = plan.units.eval(symbols), blocks = (units + plan.block_units() - 1) / plan.block_units();
    if (blocks > std::numeric_limits<int32_t>::max()) fail("cuda: a kernel of ", units, " results is too large for one launch");
    return {static_cast<unsigned>(blocks), reach(plan, symbols) < kNarrow};
  }
};

class CudaKernel : public CompiledKernel {
 public:
  CudaKernel(std::shared_ptr<const Built> built) : first_(std::move(built)) {
    if (first_->plan.kernel.symbols == 0) fixed_ = first_->sizes({});
  }

  void launch(void* const* buffers, const int64_t* numbers, const RunContext& run) const override {
    const Kernel& k = kernel();
    const std::span<const int64_t> symbols(numbers, static_cast<size_t>(k.symbols));
    LaunchSizes sizes = fixed_ ? *fixed_ : first_->sizes(symbols);
    if (sizes.blocks == 0) return;
    enter_device(run.device.index);
    const Variant wanted{architecture_of(run.device.index), first_->plan.variant.packs && first_->is_aligned(buffers),
                         first_->plan.variant.wide || !sizes.fits_narrow};
    const Built* built = first_.get();
    std::shared_ptr<const Built> other;
    if (wanted != built->plan.variant) {
      other = variant(wanted);
      built = other.get();
      sizes = built->sizes(symbols);
    }
    if (run.recording) static_cast<LaunchGraph*>(run.recording)->keep(run.step, kept(*built, sizes.blocks, buffers, numbers));
    else start(*built, sizes.blocks, buffers, numbers, static_cast<Stream>(run.queue));
  }

  // Its share of the unit's, whose kernels all hold it.
  size_t code_bytes() const override { return first_->code->image().size() / static_cast<size_t>(first_->code.use_count()); }
  const Built& first() const { return *first_; }
  const Kernel& kernel() const { return first_->plan.kernel; }

 private:
  static void start(const Built& built, unsigned blocks, void* const* buffers, const int64_t* numbers, Stream stream) {
    constexpr size_t kFew = 512;
    const Kernel& k = built.plan.kernel;
    const size_t all = k.buffers.size() + static_cast<size_t>(k.symbols + k.parameters);
    uint64_t few[kFew];
    std::vector<uint64_t> many(all > kFew ? all : 0);
    uint64_t* const parameters = many.empty() ? few : many.data();
    std::memcpy(parameters, buffers, k.buffers.size() * sizeof(void*));
    std::memcpy(parameters + k.buffers.size(), numbers, (all - k.buffers.size()) * sizeof(int64_t));
    const auto [x, y] = built.threads();
    const Driver& driver = Driver::get();
    PackedParameters packed(parameters, all);
    const int result = driver.launch(built.function, blocks, 1, 1, x, y, 1, 0, stream, nullptr, packed.extra);
    if (result != 0) driver.check(result, cat("launching a kernel:\n", k.str()).c_str());
  }

  static Launch kept(const Built& built, unsigned blocks, void* const* buffers, const int64_t* numbers) {
    const Kernel& k = built.plan.kernel;
    const auto [x, y] = built.threads();
    Launch out{built.function, blocks, x, y, {}};
    out.parameters.reserve(k.buffers.size() + static_cast<size_t>(k.symbols + k.parameters));
    for (size_t b = 0; b < k.buffers.size(); ++b) out.parameters.push_back(reinterpret_cast<uint64_t>(buffers[b]));
    for (int i = 0; i < k.symbols + k.parameters; ++i) out.parameters.push_back(static_cast<uint64_t>(numbers[i]));
    return out;
  }

  // Rare: an input that begins between two pieces of 16 bytes, one of more than 2^31 elements, a device of another kind.
  std::shared_ptr<const Built> variant(const Variant& wanted) const {
    std::lock_guard lock(mutex_);
    auto& known = others_[wanted];
    if (known) return known;
    auto kernel = std::make_shared<const Kernel>(first_->plan.kernel);
    auto code = compile_source(emit_unit(std::span(&kernel, 1), wanted), wanted.architecture);
    return known = std::make_shared<const Built>(plan_kernel(*kernel, wanted), "k0", std::move(code));
  }

  std::shared_ptr<const Built> first_;
  std::optional<LaunchSizes> fixed_;  // where no symbol is in it
  mutable std::mutex mutex_;
  mutable std::map<Variant, std::shared_ptr<const Built>> others_;
};

// Kernels of the process by their text and architecture. Those that nobody asked for lately live with the programs that use them.
struct Known {
  static constexpr size_t kMost = 4096;
  std::mutex mutex;
  RecentlyUsed<std::pair<int, std::string>, std::shared_ptr<const CompiledKernel>> kernels{kMost};
  static Known& get() {
    static Known* known = new Known;
    return *known;
  }
  std::shared_ptr<const CompiledKernel> find(int architecture, const std::string& text) {
    std::lock_guard lock(mutex);
    const auto* found = kernels.find({architecture, text});
    return found ? *found : nullptr;
  }
  std::shared_ptr<const CompiledKernel> insert(int architecture, std::string text, std::shared_ptr<const CompiledKernel> kernel) {
    std::lock_guard lock(mutex);
    return kernels.insert({architecture, std::move(text)}, std::move(kernel));
  }
};

using Kernels = std::vector<std::shared_ptr<const Kernel>>;

Variant first_variant(const Kernel& kernel, int architecture) {
  const Variant narrow{architecture};
  if (kernel.symbols > 0) return narrow;
  const int64_t most = reach(plan_kernel(kernel, narrow), {});
  return {architecture, true, most >= (int64_t{1} << 31) - (int64_t{1} << 21)};
}

using Ready = std::map<std::string, std::shared_ptr<const CompiledKernel>>;

// All that are not known yet.
void compile_missing(std::span<const std::shared_ptr<const Kernel>> kernels, Ready& known, int architecture, int threads) {
  std::vector<KernelPlan> plans;
  std::vector<std::string> texts;
  auto name = [](size_t i) { return cat("k", i); };
  for (size_t i = 0; i < kernels.size(); ++i) {
    plans.push_back(plan_kernel(*kernels[i], first_variant(*kernels[i], architecture)));
    texts.push_back("\n" + emit_kernel(plans.back(), name(i)));
  }
  const std::vector<std::vector<size_t>> units = divide_into_units(texts, threads);
  std::vector<std::string> sources(units.size(), kPrelude);
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t i : units[u]) sources[u] += texts[i];
    log_debug("cuda source:\n", sources[u]);
  }
  const std::vector<UnitCode> codes = compile_units(sources, architecture);
  for (size_t u = 0; u < units.size(); ++u) {
    if (!codes[u].refusal.empty()) {  // by which of its kernels?
      if (kernels.size() == 1) throw BuildFailure(cat(codes[u].refusal, kernels.front()->str()));
      for (size_t i : units[u]) compile_missing(kernels.subspan(i, 1), known, architecture, 1);
      continue;
    }
    const auto code = std::make_shared<const Code>(codes[u].image);
    for (size_t i : units[u]) {
      auto built = std::make_shared<const Built>(std::move(plans[i]), name(i), code);
      std::string text = kernels[i]->str();
      known[text] = Known::get().insert(architecture, text, std::make_shared<const CudaKernel>(std::move(built)));
    }
  }
}

}  // namespace

std::string emit_unit(std::span<const std::shared_ptr<const Kernel>> kernels, const Variant& variant) {
  std::string source = kPrelude;
  for (size_t i = 0; i < kernels.size(); ++i) source += "\n" + emit_kernel(plan_kernel(*kernels[i], variant), cat("k", i));
  return source;
}

CompiledKernels compile_kernels(std::span<const std::shared_ptr<const Kernel>> kernels, const CompileSettings& settings) {
  const int architecture = architecture_of(current_device());
  enter_device(current_device());
  Ready known;
  std::vector<std::string> texts;
  Kernels missing;
  for (const auto& k : kernels) {
    texts.push_back(k->str());
    auto [at, fresh] = known.try_emplace(texts.back());
    if (!fresh) continue;
    at->second = Known::get().find(architecture, texts.back());
    if (!at->second) missing.push_back(k);
  }
  const int threads = settings.threads > 0 ? settings.threads : static_cast<int>(std::thread::hardware_concurrency());
  if (!missing.empty()) compile_missing(missing, known, architecture, threads);
  if (settings.progress) settings.progress(static_cast<int>(kernels.size()), static_cast<int>(kernels.size()));
  CompiledKernels out;
  for (const std::string& text : texts) out.push_back(known.at(text));
  return out;
}

// ---- saved kernels ----

std::string fingerprint() {
  constexpr int kFormat = 2;  // of saved kernels, and of the code that is generated
  return cat("cuda ", kFormat, " nvrtc ", Nvrtc::get().version_text(), " sm_", architecture_of(current_device()));
}

namespace {

void add(std::string& out, std::string_view piece) {
  const uint64_t bytes = piece.size();
  out.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  out += piece;
}

std::string_view next(std::string_view& rest) {
  uint64_t bytes = 0;
  if (rest.size() < sizeof bytes) unsupported("cuda: saved kernels that are cut off");
  std::memcpy(&bytes, rest.data(), sizeof bytes);
  rest.remove_prefix(sizeof bytes);
  if (bytes > rest.size()) unsupported("cuda: saved kernels that are cut off");
  const std::string_view piece = rest.substr(0, bytes);
  rest.remove_prefix(bytes);
  return piece;
}

}  // namespace

// The images that the kernels are in, and of each kernel its text, its name and the number of its image.
std::string save_kernels(const CompiledKernels& kernels) {
  std::vector<const Code*> images;
  std::string rows;
  for (const auto& k : kernels) {
    const Built& built = static_cast<const CudaKernel&>(*k).first();
    auto at = std::find(images.begin(), images.end(), built.code.get());
    add(rows, built.plan.kernel.str()), add(rows, built.name), add(rows, cat(at - images.begin()));
    if (at == images.end()) images.push_back(built.code.get());
  }
  std::string out;
  add(out, fingerprint());
  add(out, cat(images.size()));
  for (const Code* c : images) add(out, c->image());
  return out + rows;
}

CompiledKernels load_kernels(std::string_view bytes) {
  if (const std::string_view of = next(bytes); of != fingerprint())
    unsupported("cuda: kernels saved for '", of, "', not for '", fingerprint(), "'");
  const int architecture = architecture_of(current_device());
  enter_device(current_device());
  std::vector<std::shared_ptr<const Code>> images(std::stoul(std::string(next(bytes))));
  for (auto& image : images) image = std::make_shared<const Code>(std::string(next(bytes)));
  CompiledKernels out;
  while (!bytes.empty()) {
    const Kernel kernel = Kernel::parse(next(bytes));
    const std::string name(next(bytes));
    const auto& image = images.at(std::stoul(std::string(next(bytes))));
    auto built = std::make_shared<const Built>(plan_kernel(kernel, first_variant(kernel, architecture)), name, image);
    out.push_back(Known::get().insert(architecture, kernel.str(), std::make_shared<const CudaKernel>(std::move(built))));
  }
  return out;
}

}  // namespace broach::cuda

#include "target/cpu/jit.h"

#include <llvm/Analysis/CGSCCPassManager.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/SmallVectorMemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>
#include <llvm/Transforms/Utils/Cloning.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "support/error.h"
#include "support/log.h"
#include "support/recently_used.h"
#include "target/cpu/codegen.h"
#include "target/cpu/scratch.h"

namespace broach::cpu {

namespace {

template <class T>
T take(llvm::Expected<T> value, const char* what) {
  if (!value) fail("cpu: ", what, ": ", llvm::toString(value.takeError()));
  return std::move(*value);
}

struct Host {
  std::string cpu, features;
  llvm::Triple triple;
  Features math;
  int vector_bytes;

  Host() {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    cpu = llvm::sys::getHostCPUName().str();
    triple = llvm::Triple(llvm::sys::getProcessTriple());
    auto present = llvm::sys::getHostCPUFeatures();
    // LLVM before 22 swaps the operands of a comparison of halves under a mask, and not what is asked of them (its issue 159723). Without
    // these instructions, and what implies them, halves are compared as the wider numbers in which everything else is computed.
    for (auto& f : present)
      if (f.first() == "avx512fp16" || f.first().starts_with("avx10.")) f.second = false;
    for (const auto& f : present) features += (features.empty() ? "" : ",") + std::string(f.second ? "+" : "-") + f.first().str();
    math = features_from(present);
    vector_bytes = math.avx512 ? 64 : math.avx2 ? 32 : 16;
  }
  static const Host& get() {
    static const Host host;
    return host;
  }

  std::unique_ptr<llvm::TargetMachine> machine() const {
    std::string error;
    const auto* target = llvm::TargetRegistry::lookupTarget(triple.str(), error);
    check(target, "cpu: LLVM has no code generator for ", triple.str(), ": ", error);
    llvm::TargetOptions options;
    return std::unique_ptr<llvm::TargetMachine>(target->createTargetMachine(triple.str(), cpu, features, options, llvm::Reloc::PIC_,
                                                                            llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default, true));
  }
};

// The code that the JIT holds.
class Code {
 public:
  static Code& get() {
    static Code* code = new Code;  // never destroyed: threads may run kernels while the process ends
    return *code;
  }

  // Lives as long as somebody holds it.
  using Held = std::shared_ptr<const void>;

  Held add(std::unique_ptr<llvm::MemoryBuffer> object) { return add(jit_->getMainJITDylib(), std::move(object)); }
  KernelFn* find(const std::string& name) { return find(jit_->getMainJITDylib(), name); }

  // An object of another process, whose names are its own.
  std::pair<KernelFn*, Held> add_foreign(std::unique_ptr<llvm::MemoryBuffer> object, const std::string& name) {
    static std::atomic<int> count{0};
    auto made = jit_->createJITDylib(cat("loaded_", count++));
    if (!made) fail("cpu: making room for loaded code: ", llvm::toString(made.takeError()));
    llvm::orc::JITDylib& library = *made;
    library.addToLinkOrder(jit_->getMainJITDylib());
    Held code = add(library, std::move(object));
    KernelFn* f = find(library, name);
    return {f, Held(&library, [this, &library, code](const void*) mutable {
              code.reset();
              if (auto e = jit_->getExecutionSession().removeJITDylib(library)) note("the code of a kernel stays", std::move(e));
            })};
  }

 private:
  static void note(const char* what, llvm::Error e) { log_warning("cpu: ", what, ": ", llvm::toString(std::move(e))); }

  Held add(llvm::orc::JITDylib& library, std::unique_ptr<llvm::MemoryBuffer> object) {
    auto tracker = library.createResourceTracker();
    if (auto e = jit_->addObjectFile(tracker, std::move(object))) fail("cpu: linking a kernel: ", llvm::toString(std::move(e)));
    return Held(tracker.get(), [tracker](const void*) {
      if (auto e = tracker->remove()) note("the code of a kernel stays", std::move(e));
    });
  }
  KernelFn* find(llvm::orc::JITDylib& library, const std::string& name) {
    return take(jit_->lookup(library, name), "looking up a kernel").toPtr<KernelFn*>();
  }

  Code() {
    Host::get();
    jit_ = take(llvm::orc::LLJITBuilder().create(), "starting the JIT");
    llvm::orc::SymbolMap symbols;
    for (const auto& [name, address] : math_symbols())
      symbols[jit_->mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(address), llvm::JITSymbolFlags::Exported};
    if (auto e = jit_->getMainJITDylib().define(llvm::orc::absoluteSymbols(symbols)))
      fail("cpu: defining symbols: ", llvm::toString(std::move(e)));
    // memcpy, fmod and the like, which the code generator may call.
    jit_->getMainJITDylib().addGenerator(
        take(llvm::orc::DynamicLibrarySearchGenerator::GetForCurrentProcess(jit_->getDataLayout().getGlobalPrefix()),
             "searching the process for symbols"));
  }
  std::unique_ptr<llvm::orc::LLJIT> jit_;
};

// All that a kernel can be made of again.
struct Saved {
  std::string text, name, object;
};

class CpuKernel : public CompiledKernel {
 public:
  CpuKernel(KernelFn* fn, Code::Held code, KernelShape shape, size_t bytes, std::shared_ptr<const Saved> saved)
      : fn_(fn), code_(std::move(code)), shape_(std::move(shape)), bytes_(bytes), saved_(std::move(saved)) {
    if (shape_.units.is_constant() && shape_.work_per_unit.is_constant() && shape_.scratch_bytes.is_constant()) fixed_ = sizes({});
  }

  void launch(void* const* buffers, const int64_t* symbols, const RunContext& run) const override {
    Sizes s = fixed_ ? *fixed_ : sizes([&](SymbolId id) { return symbols[id]; });
    const int threads = is_worth_threads(s.units, s.operations) ? run.threads->count() : 1;
    const int64_t grain = grain_for(s.units, s.operations, threads);
    if (s.units <= grain) {
      int32_t error = 0;
      fn_(buffers, symbols, 0, s.units, scratch(s.scratch), &error);
      if (error) run.errors->set(run.step);
      return;
    }
    run.threads->parallel_for(s.units, grain, [&](int64_t begin, int64_t end) {
      int32_t error = 0;
      fn_(buffers, symbols, begin, end, scratch(s.scratch), &error);
      if (error) run.errors->set(run.step);
    });
  }
  void run_units(void* const* buffers, int64_t begin, int64_t end) const {
    int32_t error = 0;
    fn_(buffers, nullptr, begin, end, nullptr, &error);
  }
  std::optional<int64_t> plain_units() const { return fixed_ && fixed_->scratch == 0 ? std::optional(fixed_->units) : std::nullopt; }
  size_t code_bytes() const override { return bytes_; }
  const Saved* saved() const { return saved_.get(); }  // null: nobody asked for it
  const KernelShape& shape() const { return shape_; }

 private:
  struct Sizes {
    int64_t units, operations;  // of one unit
    size_t scratch;
  };

  Sizes sizes(const std::function<int64_t(SymbolId)>& symbols) const {
    const int64_t points = std::max<int64_t>(1, shape_.work_per_unit.eval(symbols));
    return {shape_.units.eval(symbols), points * shape_.ops_per_point, static_cast<size_t>(shape_.scratch_bytes.eval(symbols))};
  }

  static void* scratch(size_t bytes) {
    thread_local std::vector<char> memory;
    return aligned_scratch(memory, bytes);
  }

  KernelFn* fn_;
  Code::Held code_;
  KernelShape shape_;
  size_t bytes_;
  std::shared_ptr<const Saved> saved_;
  std::optional<Sizes> fixed_;
};

// A short pipeline: kernels come out of the emitter without redundant control flow; what is left is to keep accumulators in
// registers, to share address arithmetic and to move it out of loops.
void optimize(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::LoopAnalysisManager lam;
  llvm::FunctionAnalysisManager fam;
  llvm::CGSCCAnalysisManager cgam;
  llvm::ModuleAnalysisManager mam;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(mam);
  builder.registerCGSCCAnalyses(cgam);
  builder.registerFunctionAnalyses(fam);
  builder.registerLoopAnalyses(lam);
  builder.crossRegisterProxies(lam, fam, cgam, mam);
  llvm::FunctionPassManager passes;
  passes.addPass(llvm::SROAPass(llvm::SROAOptions::PreserveCFG));
  passes.addPass(llvm::EarlyCSEPass(true));
  passes.addPass(llvm::InstCombinePass());
  passes.addPass(llvm::createFunctionToLoopPassAdaptor(llvm::LICMPass(llvm::LICMOptions()), true));
  passes.addPass(llvm::EarlyCSEPass(true));
  passes.addPass(llvm::SimplifyCFGPass());
  passes.addPass(llvm::InstCombinePass());
  for (auto& f : module)
    if (!f.isDeclaration()) passes.run(f, fam);
}

struct Compiled {
  std::unique_ptr<llvm::MemoryBuffer> object;
  KernelShape shape;
  size_t bytes;
};

bool wants_dump(std::string_view stage) {
  const char* stages = std::getenv("BROACH_DUMP");
  return stages && cat(",", stages, ",").find(cat(",", stage, ",")) != std::string::npos;
}

void print_assembly(const llvm::Module& module, llvm::TargetMachine& machine) {
  auto copy = llvm::CloneModule(module);
  llvm::SmallVector<char, 0> text;
  llvm::raw_svector_ostream stream(text);
  llvm::legacy::PassManager emit;
  if (!machine.addPassesToEmitFile(emit, stream, nullptr, llvm::CodeGenFileType::AssemblyFile)) emit.run(*copy);
  llvm::errs() << stream.str();
}

Compiled compile_one(const Kernel& kernel, const std::string& name) {
  const Host& host = Host::get();
  llvm::LLVMContext context;
  llvm::Module module(name, context);
  auto machine = host.machine();
  module.setTargetTriple(host.triple.str());
  module.setDataLayout(machine->createDataLayout());
  KernelShape shape = emit_kernel(kernel, module, name, {host.math, host.vector_bytes});
  for (auto& f : module) {
    if (f.isDeclaration()) continue;
    f.addFnAttr("target-cpu", host.cpu);
    f.addFnAttr("target-features", host.features);
    f.addFnAttr("prefer-vector-width", std::to_string(host.vector_bytes * 8));
    f.addFnAttr(llvm::Attribute::NoUnwind);
  }
  std::string problem;
  llvm::raw_string_ostream out(problem);
  if (llvm::verifyModule(module, &out))
    throw BuildFailure(cat("cpu: the code emitted for a kernel is not valid: ", problem, "\n", kernel.str()));
  if (wants_dump("llvm")) module.print(llvm::errs(), nullptr);
  optimize(module, *machine);
  if (wants_dump("assembly")) print_assembly(module, *machine);
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager emit;
  check(!machine->addPassesToEmitFile(emit, stream, nullptr, llvm::CodeGenFileType::ObjectFile), "cpu: LLVM cannot emit object files");
  emit.run(module);
  size_t size = bytes.size();
  return {std::make_unique<llvm::SmallVectorMemoryBuffer>(std::move(bytes), name, false), shape, size};
}

// Kernels compiled lately, by text; others live with the executables that use them. A kernel that another thread is compiling is
// compiled twice at worst.
struct Known {
  static constexpr size_t kMost = 4096;
  std::mutex mutex;
  RecentlyUsed<std::string, std::shared_ptr<const CompiledKernel>> kernels{kMost};
  int names = 0;
  static Known& get() {
    static Known* known = new Known;
    return *known;
  }
};

}  // namespace

namespace {

using Kernels = std::span<const std::shared_ptr<const Kernel>>;

// Kernels to be compiled, of those asked for.
class Compilation {
 public:
  Compilation(Kernels kernels, const CompileSettings& settings) : settings_(settings) {
    Known& known = Known::get();
    std::unordered_map<const Kernel*, size_t> spelled;  // those that are one object have one text
    std::lock_guard lock(known.mutex);
    for (const auto& k : kernels) {
      auto [at, fresh] = spelled.emplace(k.get(), texts_.size());
      texts_.push_back(fresh ? k->str() : texts_[at->second]);
      auto [it, first] = found_.emplace(texts_.back(), nullptr);
      if (!first) continue;
      auto* compiled = known.kernels.find(texts_.back());
      if (compiled && (!settings.save || static_cast<const CpuKernel&>(**compiled).saved())) it->second = *compiled;
      else jobs_.push_back({k.get(), texts_.back(), cat("broach_kernel_", known.names++), {}});
    }
  }

  CompiledKernels run() {
    const size_t wanted =
        settings_.threads > 0 ? static_cast<size_t>(settings_.threads) : std::max(1u, std::thread::hardware_concurrency());
    if (!jobs_.empty()) Host::get();
    std::vector<std::thread> pool;
    for (size_t t = 1; t < std::min(jobs_.size(), wanted); ++t) pool.emplace_back([this] { work(); });
    work();
    for (auto& t : pool) t.join();
    if (failure_) std::rethrow_exception(failure_);
    link();
    CompiledKernels out;
    for (const auto& t : texts_) out.push_back(found_.at(t));
    return out;
  }

 private:
  struct Job {
    const Kernel* kernel;
    std::string text, name;
    Compiled compiled;
  };

  void work() {
    for (size_t i; (i = next_++) < jobs_.size();) {
      try {
        jobs_[i].compiled = compile_one(*jobs_[i].kernel, jobs_[i].name);
      } catch (...) {
        std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
      }
      const int n = ++done_;
      std::lock_guard lock(mutex_);
      if (settings_.progress) settings_.progress(n, static_cast<int>(jobs_.size()));
    }
  }

  void link() {
    std::vector<Code::Held> code;
    std::vector<std::shared_ptr<const Saved>> saved;
    for (Job& j : jobs_) {
      saved.push_back(settings_.save ? std::make_shared<const Saved>(Saved{j.text, j.name, j.compiled.object->getBuffer().str()})
                                     : nullptr);
      code.push_back(Code::get().add(std::move(j.compiled.object)));
    }
    for (size_t i = 0; i < jobs_.size(); ++i)
      found_[jobs_[i].text] = std::make_shared<CpuKernel>(Code::get().find(jobs_[i].name), std::move(code[i]), jobs_[i].compiled.shape,
                                                          jobs_[i].compiled.bytes, std::move(saved[i]));
    std::lock_guard lock(Known::get().mutex);
    for (Job& j : jobs_) Known::get().kernels.insert(j.text, found_.at(j.text));
  }

  const CompileSettings& settings_;
  std::vector<Job> jobs_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, std::shared_ptr<const CompiledKernel>> found_;
  std::atomic<size_t> next_{0};
  std::atomic<int> done_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

CompiledKernels compile_kernels(Kernels kernels, const CompileSettings& settings) { return Compilation(kernels, settings).run(); }

void run_units(const CompiledKernel& kernel, void* const* buffers, int64_t begin, int64_t end) {
  static_cast<const CpuKernel&>(kernel).run_units(buffers, begin, end);
}

std::optional<int64_t> units_of(const CompiledKernel& kernel) { return static_cast<const CpuKernel&>(kernel).plain_units(); }

// ---- saved code: pieces, each behind its length. The fingerprint, how many distinct kernels there are, their pieces, and which one
// each kernel is. ----

namespace {

class Pieces {
 public:
  explicit Pieces(std::string_view bytes) : rest_(bytes) {}
  std::string_view next() {
    uint64_t length = 0;
    take(&length, sizeof length);
    if (length > rest_.size()) unsupported("cpu: saved kernels that are cut off");
    std::string_view piece = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return piece;
  }
  int64_t number() {
    int64_t n = 0;
    take(&n, sizeof n);
    return n;
  }
  bool at_end() const { return rest_.empty(); }

  static void add(std::string& out, std::string_view piece) {
    add(out, static_cast<int64_t>(piece.size()));
    out += piece;
  }
  static void add(std::string& out, int64_t n) { out.append(reinterpret_cast<const char*>(&n), sizeof n); }

 private:
  void take(void* to, size_t bytes) {
    if (bytes > rest_.size()) unsupported("cpu: saved kernels that are cut off");
    std::memcpy(to, rest_.data(), bytes);
    rest_.remove_prefix(bytes);
  }
  std::string_view rest_;
};

std::shared_ptr<const CompiledKernel> load_one(Pieces& pieces) {
  auto saved = std::make_shared<Saved>();
  saved->text = pieces.next(), saved->name = pieces.next(), saved->object = pieces.next();
  KernelShape shape;
  for (SymInt* n : {&shape.units, &shape.work_per_unit, &shape.scratch_bytes}) *n = SymInt::parse(pieces.next());
  shape.ops_per_point = static_cast<int>(pieces.number());
  Known& known = Known::get();
  {
    std::lock_guard lock(known.mutex);
    if (auto* found = known.kernels.find(saved->text); found && static_cast<const CpuKernel&>(**found).saved()) return *found;
  }
  auto object = llvm::MemoryBuffer::getMemBufferCopy(saved->object, saved->name);
  auto [f, code] = Code::get().add_foreign(std::move(object), saved->name);
  const size_t bytes = saved->object.size();
  std::string text = saved->text;
  std::shared_ptr<const CompiledKernel> kernel = std::make_shared<CpuKernel>(f, std::move(code), std::move(shape), bytes, std::move(saved));
  std::lock_guard lock(known.mutex);
  return known.kernels.insert(std::move(text), kernel);
}

}  // namespace

std::string fingerprint() {
  const Host& host = Host::get();
  constexpr int kFormat = 2;  // of saved kernels, and of the functions of vector_math.h that they call
  return cat("cpu ", kFormat, " llvm ", LLVM_VERSION_STRING, " ", host.triple.str(), " ", host.cpu, " ", host.features);
}

std::string save_kernels(const CompiledKernels& kernels) {
  std::vector<const CpuKernel*> distinct;
  std::vector<int64_t> which;
  for (const auto& k : kernels) {
    const auto* kernel = static_cast<const CpuKernel*>(k.get());
    check(kernel->saved(), "cpu: kernels to be saved have to be compiled with CompileSettings::save");
    auto it = std::find(distinct.begin(), distinct.end(), kernel);
    which.push_back(it - distinct.begin());
    if (it == distinct.end()) distinct.push_back(kernel);
  }
  std::string out;
  Pieces::add(out, fingerprint());
  Pieces::add(out, static_cast<int64_t>(distinct.size()));
  for (const CpuKernel* k : distinct) {
    const KernelShape& s = k->shape();
    for (const std::string& piece :
         {k->saved()->text, k->saved()->name, k->saved()->object, s.units.str(), s.work_per_unit.str(), s.scratch_bytes.str()})
      Pieces::add(out, piece);
    Pieces::add(out, int64_t{s.ops_per_point});
  }
  for (int64_t i : which) Pieces::add(out, i);
  return out;
}

CompiledKernels load_kernels(std::string_view bytes) {
  Pieces pieces(bytes);
  if (std::string_view of = pieces.next(); of != fingerprint())
    unsupported("cpu: kernels saved for '", of, "', not for '", fingerprint(), "'");
  CompiledKernels distinct, out;
  for (int64_t n = pieces.number(); n > 0; --n) distinct.push_back(load_one(pieces));
  while (!pieces.at_end()) {
    const int64_t i = pieces.number();
    if (i < 0 || i >= std::ssize(distinct)) unsupported("cpu: saved kernels that are damaged");
    out.push_back(distinct[static_cast<size_t>(i)]);
  }
  return out;
}

}  // namespace broach::cpu

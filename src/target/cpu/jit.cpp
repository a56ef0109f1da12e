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

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "support/error.h"
#include "support/log.h"
#include "support/recently_used.h"
#include "target/cpu/codegen.h"

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

  // The code lives until `remove`.
  llvm::orc::ResourceTrackerSP add(std::unique_ptr<llvm::MemoryBuffer> object) {
    auto tracker = jit_->getMainJITDylib().createResourceTracker();
    if (auto e = jit_->addObjectFile(tracker, std::move(object))) fail("cpu: linking a kernel: ", llvm::toString(std::move(e)));
    return tracker;
  }
  static void remove(llvm::orc::ResourceTracker& code) {
    if (auto e = code.remove()) log_warning("cpu: the code of a kernel stays: ", llvm::toString(std::move(e)));
  }
  KernelFn* find(const std::string& name) { return take(jit_->lookup(name), "looking up a kernel").toPtr<KernelFn*>(); }

 private:
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

class CpuKernel : public CompiledKernel {
 public:
  CpuKernel(KernelFn* fn, llvm::orc::ResourceTrackerSP code, KernelShape shape, size_t bytes)
      : fn_(fn), code_(std::move(code)), shape_(std::move(shape)), bytes_(bytes) {
    if (shape_.units.is_constant() && shape_.work_per_unit.is_constant() && shape_.scratch_bytes.is_constant()) fixed_ = sizes({});
  }

  ~CpuKernel() override { Code::remove(*code_); }

  bool launch(void* const* buffers, const int64_t* symbols, const Threads& threads) const override {
    Sizes s = fixed_ ? *fixed_ : sizes([&](SymbolId id) { return symbols[id]; });
    if (s.units <= s.grain) {
      int32_t error = 0;
      fn_(buffers, symbols, 0, s.units, scratch(s.scratch), &error);
      return error == 0;
    }
    std::atomic<int32_t> any{0};
    threads.parallel_for(s.units, s.grain, [&](int64_t begin, int64_t end) {
      int32_t error = 0;
      fn_(buffers, symbols, begin, end, scratch(s.scratch), &error);
      if (error) any = 1;
    });
    return any == 0;
  }
  size_t code_bytes() const override { return bytes_; }

 private:
  struct Sizes {
    int64_t units, grain;
    size_t scratch;
  };

  Sizes sizes(const std::function<int64_t(SymbolId)>& symbols) const {
    // A piece of work should outlast by far what it costs to hand it to a thread (a few microseconds): about 30,000 vector
    // instructions.
    int64_t points = std::max<int64_t>(1, shape_.work_per_unit.eval(symbols));
    int64_t grain = std::max<int64_t>(1, 400'000 / (points * shape_.ops_per_point));
    return {shape_.units.eval(symbols), grain, static_cast<size_t>(shape_.scratch_bytes.eval(symbols))};
  }

  static void* scratch(size_t bytes) {
    if (bytes == 0) return nullptr;
    thread_local std::vector<char> memory;
    if (memory.size() < bytes + 64) memory.resize(bytes + 64);
    auto address = reinterpret_cast<uintptr_t>(memory.data());
    return reinterpret_cast<void*>((address + 63) & ~uintptr_t{63});
  }

  KernelFn* fn_;
  llvm::orc::ResourceTrackerSP code_;
  KernelShape shape_;
  size_t bytes_;
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
  check(!llvm::verifyModule(module, &out), "cpu: the code emitted for a kernel is not valid: ", problem, "\n", kernel.str());
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

std::vector<std::shared_ptr<const CompiledKernel>> compile_kernels(std::span<const std::shared_ptr<const Kernel>> kernels,
                                                                   const CompileSettings& settings) {
  struct Job {
    const Kernel* kernel;
    std::string text, name;
    Compiled compiled;
  };
  Known& known = Known::get();
  std::vector<Job> jobs;
  std::vector<std::string> texts;
  std::unordered_map<const Kernel*, size_t> spelled;  // those that are one object have one text
  std::unordered_map<std::string, std::shared_ptr<const CompiledKernel>> found;
  {
    std::lock_guard lock(known.mutex);
    for (const auto& k : kernels) {
      auto [at, fresh] = spelled.emplace(k.get(), texts.size());
      texts.push_back(fresh ? k->str() : texts[at->second]);
      auto [it, first] = found.emplace(texts.back(), nullptr);
      if (!first) continue;
      if (auto* compiled = known.kernels.find(texts.back())) it->second = *compiled;
      else jobs.push_back({k.get(), texts.back(), cat("broach_kernel_", known.names++), {}});
    }
  }
  std::atomic<size_t> next{0};
  std::atomic<int> done{0};
  std::mutex failure_mutex;
  std::exception_ptr failure;
  auto work = [&] {
    for (size_t i; (i = next++) < jobs.size();) {
      try {
        jobs[i].compiled = compile_one(*jobs[i].kernel, jobs[i].name);
      } catch (...) {
        std::lock_guard lock(failure_mutex);
        failure = std::current_exception();
      }
      int n = ++done;
      std::lock_guard lock(failure_mutex);
      if (settings.progress) settings.progress(n, static_cast<int>(jobs.size()));
    }
  };
  size_t threads = std::min<size_t>(
      jobs.size(), settings.threads > 0 ? static_cast<size_t>(settings.threads) : std::max(1u, std::thread::hardware_concurrency()));
  if (threads > 0) Host::get();
  std::vector<std::thread> pool;
  for (size_t t = 1; t < threads; ++t) pool.emplace_back(work);
  work();
  for (auto& t : pool) t.join();
  if (failure) std::rethrow_exception(failure);
  std::vector<llvm::orc::ResourceTrackerSP> code;
  for (Job& j : jobs) code.push_back(Code::get().add(std::move(j.compiled.object)));
  for (size_t i = 0; i < jobs.size(); ++i)
    found[jobs[i].text] =
        std::make_shared<CpuKernel>(Code::get().find(jobs[i].name), std::move(code[i]), jobs[i].compiled.shape, jobs[i].compiled.bytes);
  std::lock_guard lock(known.mutex);
  for (Job& j : jobs) known.kernels.insert(j.text, found.at(j.text));
  std::vector<std::shared_ptr<const CompiledKernel>> out;
  for (const auto& t : texts) out.push_back(found.at(t));
  return out;
}

}  // namespace broach::cpu

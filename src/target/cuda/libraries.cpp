#include "target/cuda/libraries.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "support/error.h"
#include "target/target.h"

namespace broach::cuda {

namespace {

// Where Python's packages lie: torch's wheels bring the libraries in folders beside torch's own.
std::string packages_folder() {
  std::string found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        const std::string path = info->dlpi_name ? info->dlpi_name : "";
        const size_t at = path.rfind("/torch/lib/libc10.so");
        if (at == std::string::npos) return 0;
        *static_cast<std::string*>(out) = path.substr(0, at);
        return 1;
      },
      &found);
  return found;
}

void* open_in(const std::string& pattern) {
  glob_t paths;
  void* library = nullptr;
  if (glob(pattern.c_str(), 0, nullptr, &paths) == 0)
    for (size_t i = 0; !library && i < paths.gl_pathc; ++i) library = dlopen(paths.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
  globfree(&paths);
  return library;
}

// The one that the process has already, else by name, else from the packages beside torch. The variable names a file.
void* open_library(const char* variable, std::initializer_list<const char*> names) {
  if (const char* path = variable ? std::getenv(variable) : nullptr) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return library;
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  if (const std::string folder = packages_folder(); !folder.empty())
    for (const char* name : names)
      if (void* library = open_in(folder + "/nvidia/*/lib/" + name)) return library;
  return nullptr;
}

// Fills in functions by name; what is missing makes the whole library unusable.
class Symbols {
 public:
  Symbols(void* library, const char* title) : library_(library), title_(title) {
    if (!library) unsupported("cuda: ", title, " cannot be opened");
  }
  template <class F>
  void operator()(F& function, const char* name) const {
    void* symbol = dlsym(library_, name);
    if (!symbol) unsupported("cuda: ", title_, " has no ", name);
    std::memcpy(&function, &symbol, sizeof symbol);
  }

 private:
  void* library_;
  const char* title_;
};

Driver open_driver() {
  const Symbols find(open_library(nullptr, {"libcuda.so.1"}), "the driver's library libcuda.so.1");
  Driver d{};
  find(d.init, "cuInit");
  find(d.device_get, "cuDeviceGet");
  find(d.device_attribute, "cuDeviceGetAttribute");
  find(d.context_current, "cuCtxGetCurrent");
  find(d.context_set, "cuCtxSetCurrent");
  find(d.context_device, "cuCtxGetDevice");
  find(d.context_retain, "cuDevicePrimaryCtxRetain");
  find(d.library_load, "cuLibraryLoadData");
  find(d.library_kernel, "cuLibraryGetKernel");
  find(d.library_unload, "cuLibraryUnload");
  find(d.launch, "cuLaunchKernel");
  find(d.copy_to_device, "cuMemcpyHtoDAsync_v2");
  find(d.copy_to_host, "cuMemcpyDtoHAsync_v2");
  find(d.pointer_attribute, "cuPointerGetAttribute");
  find(d.stream_make, "cuStreamCreate");
  find(d.stream_end, "cuStreamDestroy_v2");
  find(d.stream_wait, "cuStreamSynchronize");
  find(d.stream_wait_for, "cuStreamWaitEvent");
  find(d.event_make, "cuEventCreate");
  find(d.event_record, "cuEventRecord");
  find(d.event_end, "cuEventDestroy_v2");
  find(d.memory_take, "cuMemAlloc_v2");
  find(d.memory_give, "cuMemFree_v2");
  find(d.capture_begin, "cuStreamBeginCapture_v2");
  find(d.capture_end, "cuStreamEndCapture");
  find(d.capture_state, "cuStreamIsCapturing");
  find(d.capture_info, "cuStreamGetCaptureInfo_v2");
  find(d.capture_mode, "cuThreadExchangeStreamCaptureMode");
  find(d.graph_make, "cuGraphInstantiateWithFlags");
  find(d.graph_nodes, "cuGraphGetNodes");
  find(d.graph_add_kernel, "cuGraphAddKernelNode_v2");
  find(d.graph_order, "cuGraphAddDependencies");
  find(d.node_kind, "cuGraphNodeGetType");
  find(d.node_before, "cuGraphNodeGetDependencies");
  find(d.node_behind, "cuGraphNodeGetDependentNodes");
  find(d.node_end, "cuGraphDestroyNode");
  find(d.memset_parameters, "cuGraphMemsetNodeGetParams");
  find(d.graph_set, "cuGraphExecKernelNodeSetParams_v2");
  find(d.graph_launch, "cuGraphLaunch");
  find(d.graph_call_end, "cuGraphExecDestroy");
  find(d.graph_end, "cuGraphDestroy");
  find(d.error_text, "cuGetErrorString");
  if (d.init(0) != 0) unsupported("cuda: the driver finds no device");
  return d;
}

Nvrtc open_nvrtc() {
  const Symbols find(open_library("BROACH_NVRTC_LIBRARY", {"libnvrtc.so.13", "libnvrtc.so.12"}), "the compiler libnvrtc.so");
  Nvrtc n{};
  find(n.version, "nvrtcVersion");
  find(n.create, "nvrtcCreateProgram");
  find(n.compile, "nvrtcCompileProgram");
  find(n.cubin_size, "nvrtcGetCUBINSize");
  find(n.cubin, "nvrtcGetCUBIN");
  find(n.log_size, "nvrtcGetProgramLogSize");
  find(n.log, "nvrtcGetProgramLog");
  find(n.destroy, "nvrtcDestroyProgram");
  return n;
}

CublasLt open_cublaslt() {
  const Symbols find(open_library(nullptr, {"libcublasLt.so.13", "libcublasLt.so.12"}), "the library of products libcublasLt.so");
  CublasLt c{};
  find(c.create, "cublasLtCreate");
  find(c.desc_create, "cublasLtMatmulDescCreate");
  find(c.desc_destroy, "cublasLtMatmulDescDestroy");
  find(c.desc_set, "cublasLtMatmulDescSetAttribute");
  find(c.layout_create, "cublasLtMatrixLayoutCreate");
  find(c.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(c.layout_set, "cublasLtMatrixLayoutSetAttribute");
  find(c.preference_create, "cublasLtMatmulPreferenceCreate");
  find(c.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(c.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(c.search, "cublasLtMatmulAlgoGetHeuristic");
  find(c.matmul, "cublasLtMatmul");
  return c;
}

Cudnn open_cudnn() {
  const Symbols find(open_library(nullptr, {"libcudnn.so.9"}), "the library of convolutions libcudnn.so");
  Cudnn c{};
  find(c.create, "cudnnCreate");
  find(c.set_stream, "cudnnSetStream");
  find(c.desc_create, "cudnnBackendCreateDescriptor");
  find(c.desc_destroy, "cudnnBackendDestroyDescriptor");
  find(c.desc_set, "cudnnBackendSetAttribute");
  find(c.desc_get, "cudnnBackendGetAttribute");
  find(c.desc_finish, "cudnnBackendFinalize");
  find(c.execute, "cudnnBackendExecute");
  return c;
}

}  // namespace

const Driver& Driver::get() {
  static const Driver driver = open_driver();
  return driver;
}

const Nvrtc& Nvrtc::get() {
  static const Nvrtc nvrtc = open_nvrtc();
  return nvrtc;
}

const CublasLt& CublasLt::get() {
  static const CublasLt cublas = open_cublaslt();
  return cublas;
}

const Cudnn& Cudnn::get() {
  static const Cudnn cudnn = open_cudnn();
  return cudnn;
}

void Driver::check(int result, const char* what) const {
  if (result == 0) return;
  const char* text = nullptr;
  error_text(result, &text);
  fail("cuda: ", what, ": ", text ? text : "an error without a text", " (", result, ")");
}

bool Driver::is_pinned(const void* host) const {
  constexpr int kMemoryType = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE; fails for memory that the driver does not know
  unsigned type = 0;
  return pointer_attribute(&type, kMemoryType, reinterpret_cast<DevicePointer>(host)) == 0;
}

// ---- devices ----

int architecture_of(int device) {
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
  static std::array<std::atomic<int>, 128> known;
  auto& slot = known.at(static_cast<size_t>(device));
  if (const int found = slot.load(std::memory_order_relaxed)) return found;
  const Driver& driver = Driver::get();
  int handle = 0, major = 0, minor = 0;
  driver.check(driver.device_get(&handle, device), "the device");
  driver.check(driver.device_attribute(&major, kMajor, handle), "its compute capability");
  driver.check(driver.device_attribute(&minor, kMinor, handle), "its compute capability");
  if (major < 7) unsupported("cuda: a device of compute capability ", major, ".", minor, ", less than 7.0");
  slot.store(major * 10 + minor, std::memory_order_relaxed);
  return major * 10 + minor;
}

int current_device() {
  const Driver& driver = Driver::get();
  Context context = nullptr;
  driver.check(driver.context_current(&context), "the current context");
  int device = 0;
  if (context) driver.check(driver.context_device(&device), "the current device");
  return device;
}

void enter_device(int device) {
  const Driver& driver = Driver::get();
  Context context = nullptr;
  driver.check(driver.context_current(&context), "the current context");
  if (context) return;
  driver.check(driver.context_retain(&context, device), "the device's context");
  driver.check(driver.context_set(context), "the device's context");
}

OnDevice::OnDevice(int device) {
  const Driver& driver = Driver::get();
  driver.check(driver.context_current(&before_), "the current context");
  Context context = nullptr;
  driver.check(driver.context_retain(&context, device), "the device's context");
  driver.check(driver.context_set(context), "the device's context");
}

OnDevice::~OnDevice() { Driver::get().context_set(before_); }

// ---- the compiler ----

bool Nvrtc::is_available() {
  try {
    get();
    return true;
  } catch (const Unsupported&) {
    return false;
  }
}

std::string Nvrtc::version_text() const {
  int major = 0, minor = 0;
  version(&major, &minor);
  return cat(major, ".", minor);
}

std::string Nvrtc::machine_code(const std::string& source, int architecture) const {
  struct Owned {
    const Nvrtc& nvrtc;
    Program program = nullptr;
    ~Owned() {
      if (program) nvrtc.destroy(&program);
    }
  } owned{*this};
  if (create(&owned.program, source.c_str(), "broach.cu", 0, nullptr, nullptr) != 0) unsupported("cuda: the compiler takes no program");
  const std::string arch = cat("--gpu-architecture=sm_", architecture);
  // The last lets it work on several functions at once, which older ones do not know.
  const char* options[] = {arch.c_str(),         "--std=c++17",      "--fmad=false", "--device-as-default-execution-space",
                           "--disable-warnings", "--split-compile=0"};
  constexpr int kCount = std::size(options), kInvalidOption = 5;
  int result = compile(owned.program, kCount, options);
  if (result == kInvalidOption) result = compile(owned.program, kCount - 1, options);
  if (result != 0) {
    size_t bytes = 0;
    log_size(owned.program, &bytes);
    std::string text(bytes, '\0');
    if (bytes > 0) log(owned.program, text.data());
    throw BuildFailure(cat("cuda: generated code does not compile (", result, "): ", text));
  }
  size_t bytes = 0;
  cubin_size(owned.program, &bytes);
  std::string code(bytes, '\0');
  if (bytes == 0 || cubin(owned.program, code.data()) != 0) unsupported("cuda: the compiler gives no machine code for sm_", architecture);
  return code;
}

}  // namespace broach::cuda

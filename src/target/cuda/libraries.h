// NVIDIA's libraries as far as the target uses them: the driver, the compiler at run time and the libraries of products and convolutions. They are opened
// when they are first needed, so that one build serves machines with and without a GPU; what is called is declared here, after the
// documentation of CUDA 12 and 13, since the build has none of their headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace broach::cuda {

using DevicePointer = unsigned long long;
struct ContextObject;
struct StreamObject;
struct LibraryObject;
struct KernelObject;
struct GraphObject;
struct NodeObject;
struct GraphCallObject;
struct EventObject;
using Context = ContextObject*;
using Stream = StreamObject*;
using Library = LibraryObject*;
using Function = KernelObject*;
using Graph = GraphObject*;
using Node = NodeObject*;
using GraphCall = GraphCallObject*;  // a graph that can be launched
using Event = EventObject*;

// Parameters of a kernel that all have 64 bits, for a launch's `extra`: in one piece the driver copies hundreds of them faster than it
// picks them up one by one.
struct PackedParameters {
  PackedParameters(uint64_t* parameters, size_t count)
      : bytes(count * sizeof(uint64_t)), extra{reinterpret_cast<void*>(1), parameters, reinterpret_cast<void*>(2), &bytes, nullptr} {}
  PackedParameters(const PackedParameters&) = delete;
  PackedParameters& operator=(const PackedParameters&) = delete;

  size_t bytes;
  void* extra[5];  // CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
};

// CUDA_KERNEL_NODE_PARAMS, its second version.
struct NodeParameters {
  void* function = nullptr;
  unsigned grid[3], block[3], shared_bytes = 0;
  void** parameters = nullptr;
  void** extra = nullptr;
  Function kernel = nullptr;  // in the place of a function
  Context context = nullptr;  // null: the current one
};

// CUDA_MEMSET_NODE_PARAMS.
struct MemsetParameters {
  DevicePointer to;
  size_t pitch;
  unsigned value, element_bytes;
  size_t width, height;  // elements of a row, and rows
};

// libcuda.so.1. Results are CUresult: 0 is success.
struct Driver {
  static const Driver& get();  // throws Unsupported where there is none

  int (*init)(unsigned flags);
  int (*device_get)(int* device, int ordinal);
  int (*device_attribute)(int* value, int attribute, int device);
  int (*context_current)(Context*);
  int (*context_set)(Context);
  int (*context_device)(int* device);
  int (*context_retain)(Context*, int device);
  int (*library_load)(Library*, const void* code, int* jit_options, void** jit_values, unsigned jit_count, int* options, void** values,
                      unsigned count);
  int (*library_kernel)(Function*, Library, const char* name);
  int (*library_unload)(Library);
  // A kernel of a library takes the place of a function, in whichever context is current.
  int (*launch)(Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                unsigned shared_bytes, Stream, void** parameters, void** extra);
  int (*copy_to_device)(DevicePointer to, const void* from, size_t bytes, Stream);
  int (*copy_to_host)(void* to, DevicePointer from, size_t bytes, Stream);
  int (*pointer_attribute)(void* value, int attribute, DevicePointer);
  int (*stream_make)(Stream*, unsigned flags);
  int (*stream_end)(Stream);
  int (*stream_wait)(Stream);
  int (*stream_wait_for)(Stream, Event, unsigned flags);
  int (*event_make)(Event*, unsigned flags);
  int (*event_record)(Event, Stream);
  int (*event_end)(Event);
  int (*memory_take)(DevicePointer*, size_t bytes);
  int (*memory_give)(DevicePointer);
  // Launches into a stream become nodes of a graph between `begin` and `end`. What a thread may do meanwhile is its mode.
  int (*capture_begin)(Stream, int mode);
  int (*capture_end)(Stream, Graph*);
  int (*capture_state)(Stream, int* state);
  int (*capture_info)(Stream, int* state, uint64_t* id, Graph*, const Node** last, size_t* count);
  int (*capture_mode)(int* mode);  // exchanges the thread's
  int (*graph_make)(GraphCall*, Graph, unsigned long long flags);
  int (*graph_nodes)(Graph, Node*, size_t* count);
  int (*graph_add_kernel)(Node*, Graph, const Node* before, size_t count, const NodeParameters*);
  int (*graph_order)(Graph, const Node* first, const Node* second, size_t count);
  int (*node_kind)(Node, int* kind);
  int (*node_before)(Node, Node*, size_t* count);
  int (*node_behind)(Node, Node*, size_t* count);
  int (*node_end)(Node);
  int (*memset_parameters)(Node, MemsetParameters*);
  int (*graph_set)(GraphCall, Node, const NodeParameters*);
  int (*graph_launch)(GraphCall, Stream);
  int (*graph_call_end)(GraphCall);
  int (*graph_end)(Graph);
  int (*error_text)(int result, const char** text);

  // Throws an Error that names what was tried.
  void check(int result, const char* what) const;
  // Whether memory of the host's is the driver's own or was registered with it, so that a copy goes on behind the call.
  bool is_pinned(const void* host) const;
};

// Of a device by its ordinal: 90 for compute capability 9.0. Throws Unsupported where there is none.
int architecture_of(int device);
// The ordinal of the device that this thread works on; 0 if it has not chosen.
int current_device();
// Makes the device's context this thread's, if it has none yet: torch sets one only where something differs.
void enter_device(int device);
// As long as it lives, the device's context is this thread's.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  Context before_ = nullptr;
};

// libnvrtc.so. Results are nvrtcResult: 0 is success.
struct Nvrtc {
  static const Nvrtc& get();  // throws Unsupported where there is none
  static bool is_available();

  using Program = void*;
  int (*version)(int* major, int* minor);
  int (*create)(Program*, const char* source, const char* name, int headers, const char* const* header_texts,
                const char* const* header_names);
  int (*compile)(Program, int count, const char* const* options);
  int (*cubin_size)(Program, size_t*);
  int (*cubin)(Program, char*);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*destroy)(Program*);

  std::string version_text() const;
  // Machine code for an architecture (90), in which products and sums are rounded one by one: two kernels that compute the same value,
  // each beside other operations, find the same. Throws BuildFailure with the compiler's words.
  std::string machine_code(const std::string& source, int architecture) const;
};

// libcublasLt.so. Results are cublasStatus_t: 0 is success.
struct CublasLt {
  static const CublasLt& get();  // throws Unsupported where there is none

  using Handle = void*;
  using Desc = void*;        // of an operation
  using Layout = void*;      // of a matrix
  using Preference = void*;  // of a search
  struct Algorithm {
    uint64_t data[8];
  };
  struct Found {  // cublasLtMatmulHeuristicResult_t
    Algorithm algorithm;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
  };

  int (*create)(Handle*);
  int (*desc_create)(Desc*, int compute_type, int scale_type);
  int (*desc_destroy)(Desc);
  int (*desc_set)(Desc, int attribute, const void* value, size_t bytes);
  int (*layout_create)(Layout*, int type, uint64_t rows, uint64_t columns, int64_t leading);
  int (*layout_destroy)(Layout);
  int (*layout_set)(Layout, int attribute, const void* value, size_t bytes);
  int (*preference_create)(Preference*);
  int (*preference_destroy)(Preference);
  int (*preference_set)(Preference, int attribute, const void* value, size_t bytes);
  int (*search)(Handle, Desc, Layout a, Layout b, Layout c, Layout d, Preference, int wanted, Found*, int* found);
  int (*matmul)(Handle, Desc, const void* alpha, const void* a, Layout, const void* b, Layout, const void* beta, const void* c, Layout,
                void* d, Layout, const Algorithm*, void* workspace, size_t workspace_bytes, Stream);
};

// libcudnn.so.9, of which the interface that describes what to compute. Results are cudnnStatus_t: 0 is success.
struct Cudnn {
  static const Cudnn& get();  // throws Unsupported where there is none

  using Handle = void*;
  using Descriptor = void*;

  int (*create)(Handle*);
  int (*set_stream)(Handle, Stream);
  int (*desc_create)(int kind, Descriptor*);
  int (*desc_destroy)(Descriptor);
  int (*desc_set)(Descriptor, int attribute, int type, int64_t count, const void* values);
  int (*desc_get)(Descriptor, int attribute, int type, int64_t room, int64_t* count, void* values);
  int (*desc_finish)(Descriptor);
  int (*execute)(Handle, Descriptor plan, Descriptor arguments);
};

}  // namespace broach::cuda

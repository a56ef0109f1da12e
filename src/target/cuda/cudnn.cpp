#include "target/cuda/cudnn.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "support/error.h"
#include "support/log.h"
#include "support/recently_used.h"
#include "target/cuda/libraries.h"

namespace broach::cuda {

namespace {

// Numbers of cudnn_graph.h.
enum Kind {
  kPointwiseKind = 0,
  kConvolutionKind = 1,
  kEngineKind = 2,
  kConfigurationKind = 3,
  kHeuristicKind = 4,
  kPlanKind = 5,
  kForwardKind = 10,
  kWeightGradientKind = 11,
  kDataGradientKind = 12,
  kPointwiseOperationKind = 13,
  kGraphKind = 15,
  kArgumentsKind = 16,
  kTensorKind = 17
};
enum Type {
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kFloat = 4,
  kPointer = 6,
  kConvolutionMode = 7,
  kHeuristicMode = 8,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kBehaviorNote = 19
};
enum Attribute {
  kMode = 0,
  kPrecision = 1,
  kComputeType = 100,
  kCorrelation = 101,
  kDilations = 102,
  kStrides = 103,
  kPaddingBehind = 104,
  kPaddingBefore = 105,
  kSpatialDims = 106,
  kSearchMode = 200,
  kSearched = 201,
  kFound = 202,
  kConfigurationEngine = 300,
  kPlanHandle = 400,
  kPlanConfiguration = 401,
  kPlanWorkspace = 402,
  kPointwise = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kAlignment = 900,
  kElements = 901,
  kDimensions = 902,
  kTensorStrides = 903,
  kName = 906,
  kIsVirtual = 907,
  kArgumentNames = 1000,
  kArgumentPointers = 1001,
  kArgumentWorkspace = 1003,
  kNumericalNotes = 1303,
  kBehaviorNotes = 1305
};
constexpr int kAdd = 0, kRelu = 100, kCrossCorrelation = 1;
constexpr int kInstant = 0, kFallback = 2;  // searches

constexpr int64_t kMostWorkspace = int64_t{256} << 20;
constexpr int64_t kMostTried = 12;  // engines

constexpr int kSingle = 0;  // fp32, in which everything is computed

int library_type(DType t) { return t == DType::f32 ? kSingle : t == DType::f16 ? 2 : 9; }

class Descriptor {
 public:
  explicit Descriptor(Kind kind) { require(library_.desc_create(kind, &object_), "a description"); }
  Descriptor(Descriptor&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  ~Descriptor() {
    if (object_) library_.desc_destroy(object_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  template <class T>
  Descriptor& set(Attribute attribute, Type type, std::span<const T> values) {
    require(library_.desc_set(object_, attribute, type, static_cast<int64_t>(values.size()), values.data()), "an attribute");
    return *this;
  }
  template <class T>
  Descriptor& set(Attribute attribute, Type type, const T& value) {
    return set(attribute, type, std::span<const T>(&value, 1));
  }
  Descriptor& set(Attribute attribute, const Descriptor& other) { return set(attribute, kDescriptor, other.object_); }
  // Values that there are, and as many of them as there is room for.
  template <class T>
  int64_t get(Attribute attribute, Type type, T* values, int64_t room) const {
    int64_t count = 0;
    require(library_.desc_get(object_, attribute, type, room, &count, values), "an attribute");
    return count;
  }
  bool finish() { return library_.desc_finish(object_) == 0; }
  Descriptor finished() && {
    require(library_.desc_finish(object_), "a description");
    return std::move(*this);
  }
  Cudnn::Descriptor object() const { return object_; }

  static void require(int status, const char* what) {
    if (status != 0) unsupported("cuda: cuDNN refuses ", what, " (", status, ")");
  }

 private:
  const Cudnn& library_ = Cudnn::get();
  Cudnn::Descriptor object_ = nullptr;
};

// A handle is one thread's at a time.
class Handles {
 public:
  static Handles& get() {
    static auto* handles = new Handles;  // never closed: the driver may be gone before
    return *handles;
  }

  class Lease {
   public:
    explicit Lease(int device) : device_(device), handle_(get().take(device)) {}
    ~Lease() { get().give(device_, handle_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Cudnn::Handle handle() const { return handle_; }

   private:
    int device_;
    Cudnn::Handle handle_;
  };

 private:
  Cudnn::Handle take(int device) {
    {
      const std::lock_guard lock(mutex_);
      if (auto& free = free_[device]; !free.empty()) {
        Cudnn::Handle handle = free.back();
        free.pop_back();
        return handle;
      }
    }
    Cudnn::Handle handle = nullptr;
    Descriptor::require(Cudnn::get().create(&handle), "a handle");
    return handle;
  }
  void give(int device, Cudnn::Handle handle) {
    const std::lock_guard lock(mutex_);
    free_[device].push_back(handle);
  }

  std::mutex mutex_;
  std::map<int, std::vector<Cudnn::Handle>> free_;
};

// Tensors by the names that a plan's arguments have.
enum Name : int64_t { kX = 'x', kWeight = 'w', kY = 'y', kBias = 'b', kAdded = 'z', kFirstVirtual = 'A' };

// With its channels side by side.
Descriptor tensor(const Sizes& sizes, int type, int64_t name, bool is_virtual = false) {
  constexpr int64_t kBytes = 16;
  const int64_t pixels = sizes[2] * sizes[3];
  const Sizes strides{sizes[1] * pixels, 1, sizes[3] * sizes[1], sizes[1]};
  Descriptor out(kTensorKind);
  out.set(kElements, kDataType, type).set(kDimensions, kInt64, std::span<const int64_t>(sizes));
  out.set(kTensorStrides, kInt64, std::span<const int64_t>(strides)).set(kName, kInt64, name).set(kAlignment, kInt64, kBytes);
  if (is_virtual) out.set(kIsVirtual, kBoolean, true);
  return std::move(out).finished();
}

// What the library is to compute: the convolution, and operations behind it whose results in between are nowhere in memory.
class Problem {
 public:
  Problem(const LibraryConvolution& c, Cudnn::Handle handle) : c_(c), graph_(kGraphKind) {
    convolve();
    const Sizes channels{1, c.y[1], 1, 1};
    if (c.adds) append(kAdd, std::optional(tensor(c.y, library_type(c.dtype), kAdded)));
    if (c.bias) append(kAdd, std::optional(tensor(channels, library_type(*c.bias), kBias)));
    if (c.relu) append(kRelu, std::nullopt);
    std::vector<Cudnn::Descriptor> operations;
    for (const Descriptor& d : operations_) operations.push_back(d.object());
    graph_.set(kGraphHandle, kHandle, handle).set(kGraphOperations, kDescriptor, std::span<const Cudnn::Descriptor>(operations));
    if (!graph_.finish()) unsupported("cuda: cuDNN refuses a convolution and what stands behind it");
  }
  const Descriptor& graph() const { return graph_; }

 private:
  using Wanted = LibraryConvolution::Wanted;

  bool is_last() { return ++made_ == 1 + int{c_.adds} + int{c_.bias.has_value()} + int{c_.relu}; }

  // In the convolution's type at the end, and in fp32 before.
  const Descriptor& result() {
    const bool last = is_last();
    return keep(tensor(c_.y, last ? library_type(c_.dtype) : kSingle, last ? int64_t{kY} : kFirstVirtual + made_, !last));
  }
  const Descriptor& keep(Descriptor d) { return *tensors_.emplace_back(std::make_unique<Descriptor>(std::move(d))); }

  void convolve() {
    constexpr int64_t kDims = 2;
    auto list = [](const Sizes& s) { return std::span<const int64_t>(s); };
    Descriptor how(kConvolutionKind);
    how.set(kComputeType, kDataType, kSingle).set(kCorrelation, kConvolutionMode, kCrossCorrelation).set(kSpatialDims, kInt64, kDims);
    how.set(kDilations, kInt64, list(c_.dilation)).set(kStrides, kInt64, list(c_.stride));
    how.set(kPaddingBefore, kInt64, list(c_.padding)).set(kPaddingBehind, kInt64, list(c_.padding));
    const Descriptor& convolution = keep(std::move(how).finished());
    const int type = library_type(c_.dtype);
    const Descriptor &x = keep(tensor(c_.x, type, kX)), &weight = keep(tensor(c_.weight, type, kWeight)), &y = result();
    // Attributes of the three kinds, in this order: alpha, beta, the convolution, and the tensors.
    struct Row {
      Kind kind;
      int alpha, weight, x, y;
    };
    const Row row = c_.wanted == Wanted::y   ? Row{kForwardKind, 700, 703, 704, 705}
                    : c_.wanted == Wanted::x ? Row{kDataGradientKind, 706, 709, 710, 711}
                                             : Row{kWeightGradientKind, 712, 715, 716, 717};
    auto attribute = [](int number) { return static_cast<Attribute>(number); };
    const float one = 1, zero = 0;
    Descriptor operation(row.kind);
    operation.set(attribute(row.alpha), kFloat, one).set(attribute(row.alpha + 1), kFloat, zero);
    operation.set(attribute(row.alpha + 2), convolution).set(attribute(row.weight), weight).set(attribute(row.x), x);
    operation.set(attribute(row.y), y);
    operations_.push_back(std::move(operation).finished());
    last_ = &y;
  }

  void append(int mode, std::optional<Descriptor> operand) {
    Descriptor how(kPointwiseKind);
    how.set(kMode, kPointwiseMode, mode).set(kPrecision, kDataType, kSingle);
    const Descriptor& pointwise = keep(std::move(how).finished());
    Descriptor operation(kPointwiseOperationKind);
    operation.set(kPointwise, pointwise).set(kPointwiseX, *last_);
    if (operand) operation.set(kPointwiseB, keep(std::move(*operand)));
    const Descriptor& y = result();
    operation.set(kPointwiseY, y);
    operations_.push_back(std::move(operation).finished());
    last_ = &y;
  }

  const LibraryConvolution& c_;
  int made_ = 0;
  std::vector<std::unique_ptr<Descriptor>> tensors_;
  std::vector<Descriptor> operations_;
  const Descriptor* last_ = nullptr;
  Descriptor graph_;
};

bool has_note(const Descriptor& engine, Attribute notes, Type type, int note) {
  constexpr int64_t kMost = 32;
  int found[kMost] = {};
  const int64_t count = std::min(kMost, engine.get(notes, type, found, kMost));
  return std::find(found, found + count, note) != found + count;
}

// What an engine compiles as it is first used takes longer than the whole program's kernels.
bool suits(const Descriptor& configuration, const LibraryConvolution& c) {
  constexpr int kNondeterministic = 4, kCompiles = 0;
  Descriptor engine(kEngineKind);
  Cudnn::Descriptor object = engine.object();
  configuration.get(kConfigurationEngine, kDescriptor, &object, 1);
  if (has_note(engine, kBehaviorNotes, kBehaviorNote, kCompiles)) return false;
  return !c.deterministic || !has_note(engine, kNumericalNotes, kNumericalNote, kNondeterministic);
}

class LibraryPlan : public ConvolutionPlan {
 public:
  LibraryPlan(const LibraryConvolution& c, Descriptor plan, int64_t workspace) : plan_(std::move(plan)), workspace_(workspace) {
    names_ = {kX, kWeight, kY};
    if (c.bias) names_.push_back(kBias);
    if (c.adds) names_.push_back(kAdded);
  }

  void run(const ConvolutionAddresses& at, const RunContext& run) const override {
    const MemoryLease workspace(*run.memory, workspace_, run.queue);
    std::vector<void*> pointers;
    for (int64_t name : names_)
      pointers.push_back(name == kX ? at.x : name == kWeight ? at.weight : name == kY ? at.y : name == kBias ? at.bias : at.added);
    void* const scratch = workspace.data();
    Descriptor arguments(kArgumentsKind);
    arguments.set(kArgumentNames, kInt64, std::span<const int64_t>(names_));
    arguments.set(kArgumentPointers, kPointer, std::span<void* const>(pointers)).set(kArgumentWorkspace, kPointer, scratch);
    const Descriptor finished = std::move(arguments).finished();
    const Handles::Lease lease(run.device.index);
    const Cudnn& library = Cudnn::get();
    const std::lock_guard lock(mutex_);  // what an engine keeps in its plan is not known
    int status = library.set_stream(lease.handle(), static_cast<Stream>(run.queue));
    if (status == 0) status = library.execute(lease.handle(), plan_.object(), finished.object());
    if (status != 0) fail("cuda: cuDNN: a convolution failed (", status, ")");
  }

 private:
  Descriptor plan_;
  int64_t workspace_;
  std::vector<int64_t> names_;
  mutable std::mutex mutex_;
};

// The first of the engines that the library proposes which computes this, with little memory beside.
std::shared_ptr<const ConvolutionPlan> search(const LibraryConvolution& c, const Problem& problem, int mode, Cudnn::Handle handle) {
  Descriptor heuristic(kHeuristicKind);
  heuristic.set(kSearched, problem.graph()).set(kSearchMode, kHeuristicMode, mode);
  if (!heuristic.finish()) return nullptr;
  std::vector<Descriptor> found;
  std::vector<Cudnn::Descriptor> objects;
  for (int64_t i = 0; i < kMostTried; ++i) objects.push_back(found.emplace_back(kConfigurationKind).object());
  const int64_t count = heuristic.get(kFound, kDescriptor, objects.data(), kMostTried);
  for (int64_t i = 0; i < std::min(count, kMostTried); ++i) {
    const Descriptor& configuration = found[static_cast<size_t>(i)];
    if (!suits(configuration, c)) continue;
    Descriptor plan(kPlanKind);
    plan.set(kPlanHandle, kHandle, handle).set(kPlanConfiguration, configuration);
    if (!plan.finish()) continue;
    int64_t workspace = 0;
    plan.get(kPlanWorkspace, kInt64, &workspace, 1);
    if (workspace <= kMostWorkspace) return std::make_shared<LibraryPlan>(c, std::move(plan), workspace);
  }
  return nullptr;
}

std::shared_ptr<const ConvolutionPlan> make_plan(const LibraryConvolution& c, int device) {
  try {
    const OnDevice on(device);
    const Handles::Lease lease(device);
    const Problem problem(c, lease.handle());
    if (auto plan = search(c, problem, kInstant, lease.handle())) return plan;
    return search(c, problem, kFallback, lease.handle());
  } catch (const Unsupported& e) {
    log_debug(e.what());
    return nullptr;
  }
}

}  // namespace

std::shared_ptr<const ConvolutionPlan> convolution_plan(const LibraryConvolution& convolution, int device) {
  using Key = std::pair<int, LibraryConvolution>;
  constexpr size_t kMostKept = 1024;
  static std::mutex mutex;
  static auto* plans = new RecentlyUsed<Key, std::shared_ptr<const ConvolutionPlan>>(kMostKept);  // never freed, as the handles are not
  const std::lock_guard lock(mutex);
  const Key key{device, convolution};
  if (const auto* known = plans->find(key)) return *known;
  return plans->insert(key, make_plan(convolution, device));
}

}  // namespace broach::cuda

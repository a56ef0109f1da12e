#include "target/cuda/fills.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "target/cuda/code.h"

namespace broach::cuda {

namespace {

constexpr int kMemsetNode = 2;  // CU_GRAPH_NODE_TYPE_MEMSET
constexpr unsigned kThreads = 256, kMostBlocks = 1024;

WrittenCode& code() {
  static auto* const code = new WrittenCode(R"(
extern "C" __global__ void fill(unsigned* to, unsigned long long words, unsigned long long value) {
  const unsigned long long threads = (unsigned long long)gridDim.x * blockDim.x;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += threads) to[i] = (unsigned)value;
}
)");
  return *code;
}

// Of one row of whole words.
struct Fill {
  uint64_t to, words, value;
};

std::optional<Fill> fill_of(const MemsetParameters& p) {
  const size_t bytes = p.width * p.element_bytes;
  if (p.height > 1 || bytes == 0 || bytes % 4 != 0 || p.to % 4 != 0) return std::nullopt;
  switch (p.element_bytes) {
    case 1: return Fill{p.to, bytes / 4, (p.value & 0xffu) * 0x01010101u};
    case 2: return Fill{p.to, bytes / 4, (p.value & 0xffffu) * 0x00010001u};
    case 4: return Fill{p.to, bytes / 4, p.value};
    default: return std::nullopt;
  }
}

// The nodes that this asks for. Nothing where the driver does not tell: edges may say more than what comes first.
template <class Ask>
std::optional<std::vector<Node>> nodes(const Ask& ask) {
  size_t count = 0;
  if (ask(nullptr, &count) != 0) return std::nullopt;
  std::vector<Node> found(count);
  if (count > 0 && ask(found.data(), &count) != 0) return std::nullopt;
  found.resize(count);
  return found;
}

void replace(const Driver& driver, Graph graph, Node node, const Fill& fill, Function function) {
  const auto before = nodes([&](Node* out, size_t* count) { return driver.node_before(node, out, count); });
  const auto behind = nodes([&](Node* out, size_t* count) { return driver.node_behind(node, out, count); });
  if (!before || !behind) return;
  uint64_t parameters[] = {fill.to, fill.words, fill.value};
  PackedParameters packed(parameters, std::size(parameters));
  const auto blocks = static_cast<unsigned>(std::min<uint64_t>((fill.words + kThreads - 1) / kThreads, kMostBlocks));
  const NodeParameters p{.grid = {blocks, 1, 1}, .block = {kThreads, 1, 1}, .extra = packed.extra, .kernel = function};
  Node made = nullptr;
  driver.check(driver.graph_add_kernel(&made, graph, before->data(), before->size(), &p), "adding a kernel to a graph");
  const std::vector<Node> from(behind->size(), made);
  driver.check(driver.graph_order(graph, from.data(), behind->data(), behind->size()), "ordering the kernels of a graph");
  driver.check(driver.node_end(node), "taking a node out of a graph");
}

}  // namespace

void fill_by_kernels(Graph graph, int device) {
  const Driver& driver = Driver::get();
  const auto all = nodes([&](Node* out, size_t* count) { return driver.graph_nodes(graph, out, count); });
  if (!all) return;
  Function function = nullptr;
  for (Node node : *all) {
    int kind = 0;
    MemsetParameters p{};
    if (driver.node_kind(node, &kind) != 0 || kind != kMemsetNode || driver.memset_parameters(node, &p) != 0) continue;
    const auto fill = fill_of(p);
    if (!fill) continue;
    if (!function) function = code().function("fill", architecture_of(device));
    replace(driver, graph, node, *fill, function);
  }
}

}  // namespace broach::cuda

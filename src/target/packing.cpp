#include "target/packing.h"

#include <atomic>

namespace broach {

namespace {

std::atomic<uint64_t> announced{0};

}  // namespace

uint64_t PackingNews::count() { return announced.load(std::memory_order_acquire); }
void PackingNews::announce() { announced.fetch_add(1, std::memory_order_release); }

}  // namespace broach

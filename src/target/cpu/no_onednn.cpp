// Built in the place of onednn.cpp without the library's headers: nothing can be created, so no member function is ever reached.
#include "target/cpu/onednn.h"

#include <utility>

namespace broach::cpu::onednn {

struct Primitive::Parts {
  std::string text;
};

MemoryLayout::MemoryLayout(const dnnl_memory_desc*) {}
bool MemoryLayout::operator==(const MemoryLayout&) const { return true; }
size_t MemoryLayout::hash() const { return 0; }
size_t MemoryLayout::bytes() const { return 0; }
std::string MemoryLayout::text() const { return "none"; }
std::optional<std::vector<int64_t>> MemoryLayout::strides() const { return std::nullopt; }
bool MemoryLayout::lies_in_pairs(size_t, size_t, int64_t) const { return false; }
MemoryLayout strided_layout(const Operand&) { return {}; }
MemoryLayout matmul_weight_layout(const Operand&, int64_t) { return {}; }

std::shared_ptr<const Primitive> Primitive::create(const MatmulDesc&) { return nullptr; }
std::shared_ptr<const Primitive> Primitive::create(const ConvDesc&) { return nullptr; }
std::shared_ptr<const Primitive> Primitive::reorder(const MemoryLayout&, const MemoryLayout&) { return nullptr; }

Primitive::Primitive(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Primitive::~Primitive() = default;
MemoryLayout Primitive::src_layout() const { return {}; }
MemoryLayout Primitive::weight_layout() const { return {}; }
MemoryLayout Primitive::dst_layout() const { return {}; }
MemoryLayout Primitive::post_layout(size_t) const { return {}; }
size_t Primitive::scratchpad_bytes() const { return 0; }
std::string Primitive::implementation() const { return ""; }
bool Primitive::is_reference() const { return false; }
bool Primitive::is_unfolded() const { return false; }
const std::string& Primitive::text() const { return parts_->text; }
void Primitive::pack_weight(const void*, void*) const {}
void Primitive::run(const void*, const void*, const void*, void*, std::span<const void* const>, void*) const {}

void set_onednn_path(std::string) {}
bool available() { return false; }
std::string version() { return ""; }
std::string unavailable_why() { return "Broach was built without the headers of oneDNN"; }

}  // namespace broach::cpu::onednn

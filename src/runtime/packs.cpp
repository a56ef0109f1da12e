#include "packs.h"

#include <cstdlib>
#include <new>

#include "support/host_allocation.h"

namespace broach {

SharedPacks& SharedPacks::of_process() {
  static SharedPacks packs;
  return packs;
}

std::shared_ptr<const std::byte[]> SharedPacks::find_or_make(const PackSource& source, const PackForm& form, size_t bytes,
                                                             const std::function<void(std::byte*)>& fill) {
  std::lock_guard lock(mutex_);
  if (entries_.size() >= next_cleaning_) {
    std::erase_if(entries_, [](const auto& e) { return e.second.expired(); });
    next_cleaning_ = 2 * entries_.size() + kFewest;
  }
  std::weak_ptr<const std::byte[]>& entry = entries_[{source.name, form}];
  if (auto found = entry.lock()) return found;
  // Freed together, so that an entry which is alive says that its name still stands for the same elements.
  struct Copy {
    std::shared_ptr<const void> source;
    std::unique_ptr<std::byte, void (*)(void*)> memory;
  };
  auto copy = std::make_shared<Copy>(Copy{source.keeps, {static_cast<std::byte*>(allocate_host(bytes)), std::free}});
  if (!copy->memory) throw std::bad_alloc();
  fill(copy->memory.get());
  std::shared_ptr<const std::byte[]> made(copy, copy->memory.get());
  entry = made;
  return made;
}

}  // namespace broach

#include "autocast_cache.h"

#include <ATen/autocast_mode.h>

#include "devices.h"

namespace broach {

static WithoutAutocastCache*& innermost() {
  static thread_local WithoutAutocastCache* of_thread = nullptr;
  return of_thread;
}

WithoutAutocastCache::WithoutAutocastCache() : enabled_(at::autocast::is_autocast_cache_enabled()), outer_(innermost()) {
  if (Autocast::now().is_on()) at::autocast::clear_cache();  // for blocks that ask for a cache
  at::autocast::set_autocast_cache_enabled(false);
  innermost() = this;
}

WithoutAutocastCache::~WithoutAutocastCache() {
  end();
  innermost() = outer_;
}

void WithoutAutocastCache::end_here() {
  if (innermost()) innermost()->end();
}

void WithoutAutocastCache::end() {
  if (!is_over_) at::autocast::set_autocast_cache_enabled(enabled_);
  is_over_ = true;
}

}  // namespace broach

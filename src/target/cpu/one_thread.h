// Products and convolutions that are too small for several threads. oneDNN shares whatever it computes among all threads, or, some
// convolutions, among as many as there are pieces; then OpenMP ends the others, to make them again for the next full team.
#pragma once

#include "target/cpu/onednn.h"

namespace broach::cpu {

// Floating-point operations, and bytes of the operands and the result.
double flops(const onednn::MatmulDesc& desc);
double flops(const onednn::ConvDesc& desc);
double bytes(const onednn::MatmulDesc& desc);
double bytes(const onednn::ConvDesc& desc);

// Ten to twenty microseconds of one thread: what waking others takes, as a product does so up to twice. What reads more than lies in the
// caches next to one core gains by the others' caches.
inline bool is_for_one_thread(double flops, double bytes) {
  constexpr double kFlops = 1e6, kBytes = 1 << 18;
  return flops <= kFlops && bytes <= kBytes;
}

// The OpenMP that this library uses; none where it uses another way to run threads.
void find_openmp(void* library);

// While it lives, and if it is wanted, OpenMP gives this thread's work to no other.
class OneThread {
 public:
  explicit OneThread(bool wanted);
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = 0;  // 0: nothing was changed
};

}  // namespace broach::cpu

#include "target/cpu/one_thread.h"

#include <dlfcn.h>

#include <atomic>

#include "target/cpu/contraction_plan.h"

namespace broach::cpu {

namespace {

std::atomic<void (*)(int)> set_threads{nullptr};
std::atomic<int (*)()> most_threads{nullptr};

double bytes_in(const onednn::Operand& o) { return static_cast<double>(bytes_of(o)); }

}  // namespace

double flops(const onednn::MatmulDesc& desc) {
  double flops = 2.0 * static_cast<double>(desc.b.dims.back());
  for (int64_t d : desc.a.dims) flops *= static_cast<double>(d);
  return flops;
}

double flops(const onednn::ConvDesc& desc) {
  const Dims &w = desc.weight.dims, &points = desc.transposed ? desc.src.dims : desc.dst.dims;
  double flops = 2.0 * static_cast<double>(desc.dst.dims[0]);
  for (int64_t d : w) flops *= static_cast<double>(d);
  for (size_t d = 2; d < points.size(); ++d) flops *= static_cast<double>(points[d]);
  return flops;
}

double bytes(const onednn::MatmulDesc& desc) { return bytes_in(desc.a) + bytes_in(desc.b) + bytes_in(desc.c); }
double bytes(const onednn::ConvDesc& desc) { return bytes_in(desc.src) + bytes_in(desc.weight) + bytes_in(desc.dst); }

void find_openmp(void* library) {
  most_threads = reinterpret_cast<int (*)()>(dlsym(library, "omp_get_max_threads"));
  set_threads = reinterpret_cast<void (*)(int)>(dlsym(library, "omp_set_num_threads"));
}

OneThread::OneThread(bool wanted) {
  if (!wanted || !set_threads || !most_threads) return;
  if (const int most = most_threads.load()(); most > 1) {
    before_ = most;
    set_threads.load()(1);
  }
}

OneThread::~OneThread() {
  if (before_) set_threads.load()(before_);
}

}  // namespace broach::cpu

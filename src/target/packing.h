// Weights rearranged ahead for the contractions that read them. What is worth rearranging, how, and whether it has been measured to
// be, is the target's affair; that a weight stays the same is the front's, which alone knows who may write it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace broach {

// A weight rearranged for a contraction; no data where that brings nothing.
struct PackedWeight {
  std::shared_ptr<const std::byte[]> data;
  size_t bytes = 0, layout = 0;
};

// Seconds of one run of a contraction, measured: with its weight rearranged, and by the best that takes it as it is.
struct PackingGain {
  double packed, unpacked;
};

// What the process has learnt of its contractions: what WeightPacking said holds while the number stays.
class PackingNews {
 public:
  static uint64_t count();
  static void announce();
};

// The packing of one contraction's weight, for any values of the symbols.
class WeightPacking {
 public:
  virtual ~WeightPacking() = default;
  // Bytes of the weight rearranged; 0 where packing brings nothing, or, but for a trial, is not known to.
  virtual size_t bytes(std::span<const int64_t> symbols, bool trial) const = 0;
  // Stands for the arrangement; weights packed for other sizes are used where it is the same.
  virtual size_t layout(std::span<const int64_t> symbols) const = 0;
  virtual void pack(std::span<const int64_t> symbols, const void* weight, void* packed) const = 0;
  // While it is being measured whether packing pays: contractions for which this is the same need only one packed weight
  // between them. 0 otherwise.
  virtual size_t trial(std::span<const int64_t> symbols) const = 0;
  // Nothing where it is not, or not yet, known.
  virtual std::optional<PackingGain> gain(std::span<const int64_t> symbols) const = 0;
  // Whether `bytes` stays as it is, but for news; until then `pack` may be asked for again.
  virtual bool is_settled(std::span<const int64_t> symbols) const = 0;
};

}  // namespace broach

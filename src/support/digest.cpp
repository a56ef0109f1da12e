#include "support/digest.h"

#include <array>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace broach {

namespace {

constexpr size_t kWords = 256;  // of 64 bits, in a block
constexpr size_t kShift = 2;    // between the keys of the two sums
constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

// SplitMix64 (Steele, Lea and Flood, 2014).
constexpr uint64_t random_word(uint64_t i) {
  uint64_t z = (i + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

constexpr auto kKeys = [] {
  std::array<uint64_t, kWords + kShift> keys{};
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = random_word(i);
  return keys;
}();

// Two sums of products: of each word's halves, after the key's halves were added to them modulo 2^32. A multiple of kLanes words.
constexpr size_t kLanes = 4;

#ifdef __x86_64__
#define BROACH_AVX2 __attribute__((target("avx2"), always_inline)) inline

BROACH_AVX2 void add_products(__m256i& sum, __m256i words, const uint64_t* keys) {
  __m256i x = _mm256_add_epi32(words, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys)));
  sum = _mm256_add_epi64(sum, _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32)));
}

BROACH_AVX2 uint64_t total(__m256i x) {
  alignas(32) std::array<uint64_t, kLanes> lanes;
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes.data()), x);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

__attribute__((target("avx2"))) Digest sums_avx2(const unsigned char* block, size_t words) {
  __m256i low = _mm256_setzero_si256(), high = low;
  for (size_t i = 0; i < words; i += kLanes) {
    __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + i * sizeof(uint64_t)));
    add_products(low, x, &kKeys[i]);
    add_products(high, x, &kKeys[i + kShift]);
  }
  return {total(low), total(high)};
}
#endif

Digest sums_of_any(const unsigned char* block, size_t words) {
  auto product = [](uint64_t word, uint64_t key) {
    return uint64_t{static_cast<uint32_t>(word) + static_cast<uint32_t>(key)} *
           (static_cast<uint32_t>(word >> 32) + static_cast<uint32_t>(key >> 32));
  };
  Digest d;
  for (size_t i = 0; i < words; ++i) {
    uint64_t word;
    std::memcpy(&word, block + i * sizeof(word), sizeof(word));
    d.low += product(word, kKeys[i]);
    d.high += product(word, kKeys[i + kShift]);
  }
  return d;
}

Digest sums(const unsigned char* block, size_t words) {
#ifdef __x86_64__
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return sums_avx2(block, words);
#endif
  return sums_of_any(block, words);
}

uint64_t times_plus(uint64_t h, uint64_t point, uint64_t add) {
  unsigned __int128 x = static_cast<unsigned __int128>(h) * point + add;
  uint64_t sum = static_cast<uint64_t>(x & kPrime) + static_cast<uint64_t>(x >> 61);
  return sum >= kPrime ? sum - kPrime : sum;
}

// A polynomial over 32-bit coefficients.
class Polynomial {
 public:
  explicit Polynomial(uint64_t point) : point_(point & (kPrime >> 1)) {}
  void add(uint64_t x) { value_ = times_plus(times_plus(value_, point_, static_cast<uint32_t>(x)), point_, x >> 32); }
  uint64_t value() const { return value_; }

 private:
  uint64_t point_, value_ = 1;
};

}  // namespace

Digest digest(const void* memory, size_t bytes) {
  constexpr size_t kBlock = kWords * sizeof(uint64_t), kStep = kLanes * sizeof(uint64_t);
  auto at = static_cast<const unsigned char*>(memory);
  Polynomial low(random_word(kKeys.size())), high(random_word(kKeys.size() + 1));
  auto add = [&](const unsigned char* block, size_t size) {
    Digest d = sums(block, size / sizeof(uint64_t));
    low.add(d.low);
    high.add(d.high);
  };
  size_t whole = bytes / kBlock, rest = bytes % kBlock;
  for (size_t i = 0; i < whole; ++i) add(at + i * kBlock, kBlock);
  if (rest) {
    alignas(32) unsigned char last[kBlock];
    size_t padded = (rest + kStep - 1) / kStep * kStep;
    std::memcpy(last, at + whole * kBlock, rest);
    std::memset(last + rest, 0, padded - rest);
    add(last, padded);
  }
  low.add(bytes);
  high.add(bytes);
  return {low.value(), high.value()};
}

}  // namespace broach

// Packed weights and products have the same bits whatever made them: each compiler, each processor
// and each variant, but for one that cannot fuse a product and a sum, and for AMX's tiles, which
// add products of bfloat16 in another order.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "interface.h"

namespace {

// FNV-1a.
template <class Element>
uint64_t hash_of(const std::vector<Element>& elements) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto* bytes = reinterpret_cast<const unsigned char*>(elements.data());
  for (size_t i = 0; i < elements.size() * sizeof(Element); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3;
  }
  return hash;
}

// Sums of four uniform numbers: standard libraries differ in their normal distributions.
std::vector<float> random_floats(int64_t count, std::mt19937& generator) {
  constexpr int kUniformBits = 24;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    int64_t sum = -(int64_t{2} << kUniformBits);
    for (int i = 0; i < 4; ++i) {
      sum += static_cast<int64_t>(generator() >> (32 - kUniformBits));
    }
    value = static_cast<float>(sum) / (1 << kUniformBits);
  }
  return values;
}

struct Hashes {
  int bits;
  uint64_t packed;
  uint64_t products;
  uint64_t unfused_products;
  uint64_t tile_products;
};
constexpr Hashes kHashes[] = {
    {32, 0x0cc58eb987bcf978, 0xcc335e04976246b8, 0x7e522dc021960212, 0xcc335e04976246b8},
    {16, 0xf3175ad90fe3753e, 0x5935d47f76c296cd, 0x5935d47f76c296cd, 0x421e8dbbdb95f71a},
    {8, 0xeb2b2d6a107d1ad3, 0xf0de2b6dfa3ed832, 0xc2af63e8c54ae19f, 0xf0de2b6dfa3ed832},
    {4, 0xf0a05fd4ab233ab3, 0xdf03ea71633153c1, 0x8b4ac30e30677cf8, 0xdf03ea71633153c1},
};

uint64_t products_of(const Hashes& hashes, const char* variant) {
#if defined(__x86_64__)
  if (std::strcmp(variant, "portable") == 0) {
    return hashes.unfused_products;
  }
#endif
  return std::strcmp(variant, "amx") == 0 ? hashes.tile_products : hashes.products;
}

// Returns the name of something that is not as `expected`, or null.
const char* wrong_bits(HearthContext* context, const Hashes& expected, const char* variant) {
  constexpr int kFloat32Source = 0;
  constexpr int64_t kInputs = 1056;
  constexpr int64_t kOutputs = 70;
  constexpr int64_t kMaxRows = 41;
  std::mt19937 generator(1);  // NOLINT(bugprone-random-generator-seed): always the same
  const std::vector<float> weights = random_floats(kOutputs * kInputs, generator);
  const auto size = hearth_packed_bytes(expected.bits, kOutputs, kInputs);
  std::vector<uint8_t> packed(static_cast<size_t>(size));
  hearth_pack(context, expected.bits, kFloat32Source, weights.data(), 0, kOutputs, kInputs,
              packed.data());
  const std::vector<float> x = random_floats(kMaxRows * kInputs, generator);
  std::vector<float> products;
  for (const int64_t rows : {int64_t{1}, int64_t{2}, int64_t{7}, int64_t{12}, kMaxRows}) {
    std::vector<float> out(static_cast<size_t>(rows * kOutputs));
    hearth_linear(context, expected.bits, packed.data(), nullptr, x.data(), rows, kOutputs, kInputs,
                  out.data());
    products.insert(products.end(), out.begin(), out.end());
  }
  if (hash_of(packed) != expected.packed) {
    return "packed weights have other bits";
  }
  if (hash_of(products) != products_of(expected, variant)) {
    return "products have other bits";
  }
  return nullptr;
}

}  // namespace

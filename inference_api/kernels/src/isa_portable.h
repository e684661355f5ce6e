// Arrays instead of registers, which a C++ compiler translates as well as it can for the processor.
#pragma once

#include <cstring>

#include "half.h"
#include "layout.h"
#include "simd.h"

namespace hearth {
namespace {

struct Portable {
  static constexpr int kLanes = 8;
  static constexpr int kVectors = 1;
  static constexpr int kVectorsOfOneRow = 1;
  static constexpr int kMaxRows = 2;
  static constexpr int kFloatVectors = 1;
  static constexpr int kMaxFloatRows = 2;

  struct Floats {
    float lanes[kLanes];
  };
  struct Sums {
    int32_t lanes[kLanes];
  };
  struct Bytes {
    uint8_t lanes[kLanes][kQuad];
  };
  struct Quad {
    int8_t values[kQuad];
  };
  struct Weights {
    int16_t lanes[kLanes][kQuad];
  };

  static Floats zero() { return {}; }

  static Floats set(float value) {
    Floats floats;
    for (float& lane : floats.lanes) {
      lane = value;
    }
    return floats;
  }

  static Floats load(const float* values) {
    Floats floats;
    std::memcpy(floats.lanes, values, sizeof floats.lanes);
    return floats;
  }

  static void store(float* out, const Floats& values) {
    for (int lane = 0; lane < kLanes; ++lane) {
      out[lane] = values.lanes[lane];
    }
  }

  static Floats multiply(Floats a, float b) {
    for (float& lane : a.lanes) {
      lane *= b;
    }
    return a;
  }

  static Floats multiply_add(const Floats& a, const Floats& b, Floats c) {
    for (int lane = 0; lane < kLanes; ++lane) {
      c.lanes[lane] = fused_multiply_add(a.lanes[lane], b.lanes[lane], c.lanes[lane]);
    }
    return c;
  }

  static Floats halves(const uint16_t* values) {
    Floats floats;
    for (int lane = 0; lane < kLanes; ++lane) {
      floats.lanes[lane] = half_to_float(values[lane]);
    }
    return floats;
  }

  // Returns the numbers in one place of each pair.
  static Floats bfloat16s(const uint16_t (*pairs)[kPair], int place) {
    Floats floats;
    for (int lane = 0; lane < kLanes; ++lane) {
      floats.lanes[lane] = bfloat16_to_float(pairs[lane][place]);
    }
    return floats;
  }

  static Quad broadcast(const int8_t* quad) { return {{quad[0], quad[1], quad[2], quad[3]}}; }

  static Bytes load(const uint8_t (*quads)[kQuad], int vector) {
    Bytes bytes;
    std::memcpy(bytes.lanes, quads + vector * kLanes, sizeof bytes.lanes);
    return bytes;
  }

  static void store(uint8_t (*quads)[kQuad], int vector, const Bytes& bytes) {
    std::memcpy(quads + vector * kLanes, bytes.lanes, sizeof bytes.lanes);
  }

  static Bytes joined(Bytes a, const Bytes& b) {
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < kQuad; ++i) {
        a.lanes[lane][i] |= b.lanes[lane][i];
      }
    }
    return a;
  }

  // Returns (byte >> shift) & mask for every byte; a negative shift is to the left.
  static Bytes field(Bytes bytes, int shift, int mask) {
    for (auto& lane : bytes.lanes) {
      for (uint8_t& byte : lane) {
        byte = static_cast<uint8_t>((shift < 0 ? byte << -shift : byte >> shift) & mask);
      }
    }
    return bytes;
  }

  static Bytes looked_up(Bytes places, const uint8_t (&table)[16]) {
    for (auto& lane : places.lanes) {
      for (uint8_t& byte : lane) {
        byte = table[byte];
      }
    }
    return places;
  }

  // Weights lose their offset when they are loaded, so that no sum has to be corrected.
  template <int kOffset>
  struct Offset {
    using Weights = Portable::Weights;

    static Weights taken(const Bytes& values) {
      Weights weights;
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int i = 0; i < kQuad; ++i) {
          weights.lanes[lane][i] = static_cast<int16_t>(values.lanes[lane][i] - kOffset);
        }
      }
      return weights;
    }

    static Sums start(int32_t) { return {}; }

    static Sums dot(Sums sums, const Weights& weights, const Quad& quad) {
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int i = 0; i < kQuad; ++i) {
          sums.lanes[lane] += weights.lanes[lane][i] * quad.values[i];
        }
      }
      return sums;
    }

    static Floats finish(const Sums& sums, int32_t) {
      Floats floats;
      for (int lane = 0; lane < kLanes; ++lane) {
        floats.lanes[lane] = static_cast<float>(sums.lanes[lane]);
      }
      return floats;
    }
  };

  // Values of kBits bits with an offset.
  template <int kBits, int kOffset>
  using Small = Offset<kOffset>;
};

}  // namespace
}  // namespace hearth

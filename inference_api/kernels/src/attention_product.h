// The products of attention, of floats and elements of a cache: scores and sums of values.
#pragma once

#include <cstring>

#include "kernels.h"
#include "simd.h"

namespace hearth {
namespace {

// So few rows are multiplied by four vectors of columns at once, not by two: their sums would wait
// for each other.
constexpr int kFewRows = 3;

// Fetches a block of keys or values into the second level cache, a little with every step of other
// work. Fetched at once, it would hold up the work that follows. The processor's own prefetching
// stops at every page of the system, which has 32 positions of 64 halves.
class Prefetch {
 public:
  Prefetch() : Prefetch(nullptr, 0, 1) {}  // fetches nothing
  Prefetch(const void* block, int64_t size, int64_t steps)
      : line_(static_cast<const char*>(block)),
        end_(line_ + size),
        lines_per_step_((size / kCacheLine + steps - 1) / steps) {}

  void step() {
    for (int64_t i = 0; i < lines_per_step_ && line_ < end_; ++i, line_ += kCacheLine) {
      __builtin_prefetch(line_, 0, 2);
    }
  }

 private:
  const char* line_;
  const char* end_;
  int64_t lines_per_step_;
};

// Loads elements of a cache as floats.
template <class Simd>
typename Simd::Vector load_element(const float* from) {
  return Simd::load(from);
}

template <class Simd>
typename Simd::Vector load_element(const uint16_t* from) {
  return Simd::load_half(from);
}

// Some dimensions of the keys at kLanes positions, with one vector for each dimension.
template <class Simd, class Element>
class Columns {
 public:
  static constexpr int kDims = Simd::kLanes;
  Columns(const Element* from, int64_t stride) { Simd::load_columns(from, stride, columns_); }
  typename Simd::Vector operator[](int dim) const { return columns_[dim]; }

 private:
  typename Simd::Vector columns_[kDims];
};

// Computes c += a b for kRows rows and kVectors vectors of columns, where b is [depth][columns].
// Makes a step of `prefetch` for every k.
template <class Simd, int kRows, int kVectors, class Element>
void product_tile(const float* a, int64_t a_stride, const Element* b, int64_t b_stride, int depth,
                  float* c, int64_t c_stride, Prefetch& prefetch) {
  Prefetch fetch = prefetch;
  typename Simd::Vector sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      sums[row][vector] = Simd::load(c + row * c_stride + vector * Simd::kLanes);
    }
  }
  for (int k = 0; k < depth; ++k) {
    fetch.step();
    typename Simd::Vector columns[kVectors];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      columns[vector] = load_element<Simd>(b + k * b_stride + vector * Simd::kLanes);
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const auto factor = Simd::set(a[row * a_stride + k]);
#pragma GCC unroll 4
      for (int vector = 0; vector < kVectors; ++vector) {
        sums[row][vector] = Simd::multiply_add(factor, columns[vector], sums[row][vector]);
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      Simd::store(c + row * c_stride + vector * Simd::kLanes, sums[row][vector]);
    }
  }
  prefetch = fetch;
}

// Computes kVectors vectors of columns for all rows, in tiles of kRows, then of half as many.
template <class Simd, int kRows, int kVectors, class Element>
void product_columns(int num_rows, const float* a, int64_t a_stride, const Element* b,
                     int64_t b_stride, int depth, float* c, int64_t c_stride, Prefetch& prefetch) {
  int row = 0;
  for (; row + kRows <= num_rows; row += kRows) {
    product_tile<Simd, kRows, kVectors>(a + row * a_stride, a_stride, b, b_stride, depth,
                                        c + row * c_stride, c_stride, prefetch);
  }
  if constexpr (kRows > 1) {
    if (row < num_rows) {
      product_columns<Simd, kRows / 2, kVectors>(num_rows - row, a + row * a_stride, a_stride, b,
                                                 b_stride, depth, c + row * c_stride, c_stride,
                                                 prefetch);
    }
  }
}

// Computes c [num_rows][columns] += a [num_rows][depth] b [depth][columns]. Each element adds its
// products in the order of k, in any tile.
template <class Simd, class Element>
void product(int num_rows, int columns, const float* a, int64_t a_stride, const Element* b,
             int64_t b_stride, int depth, float* c, int64_t c_stride, Prefetch& prefetch) {
  constexpr int kLanes = Simd::kLanes;
  int column = 0;
  if (num_rows <= kFewRows) {
    for (; column + 4 * kLanes <= columns; column += 4 * kLanes) {
      product_columns<Simd, kFewRows, 4>(num_rows, a, a_stride, b + column, b_stride, depth,
                                         c + column, c_stride, prefetch);
    }
  }
  for (; column + 2 * kLanes <= columns; column += 2 * kLanes) {
    product_columns<Simd, Simd::kRows, 2>(num_rows, a, a_stride, b + column, b_stride, depth,
                                          c + column, c_stride, prefetch);
  }
  for (; column + kLanes <= columns; column += kLanes) {
    product_columns<Simd, Simd::kRows, 1>(num_rows, a, a_stride, b + column, b_stride, depth,
                                          c + column, c_stride, prefetch);
  }
  for (; column < columns; ++column) {
    product_columns<Scalar, Scalar::kRows, 1>(num_rows, a, a_stride, b + column, b_stride, depth,
                                              c + column, c_stride, prefetch);
  }
}

// Sums of products of 32-bit words, each of which is four bytes: of columns and factors, or of
// factors that are not negative and columns.
template <class Simd>
struct SignedFactors {
  using Sums = typename Simd::Ints;
  static Sums zeros() { return Simd::zeros(); }
  static Sums add(Sums sums, typename Simd::Ints factors, typename Simd::Ints columns) {
    return Simd::add_quads(sums, columns, factors);
  }
};

template <class Simd>
struct UnsignedFactors : SignedFactors<Simd> {
  using Sums = typename Simd::Ints;
  static Sums add(Sums sums, typename Simd::Ints factors, typename Simd::Ints columns) {
    return Simd::add_unsigned_quads(sums, factors, columns);
  }
};

constexpr int kWordBytes = 4;

// Computes a b for kRows rows and kVectors vectors of columns: a is [rows][depth] words, in rows of
// kRowBytes, and b [depth][columns] words, in whole vectors of columns. Each sum adds in the order
// of depth, in any tile. Calls finish(row, column, sums) with each vector of sums. Makes a step of
// `prefetch` for every word of depth.
template <class Simd, class Words, int kRowBytes, int kRows, int kVectors, class Finish>
void word_tile(int row, int column, const void* a, const void* b, int columns, int depth,
               const Finish& finish, Prefetch& prefetch) {
  Prefetch fetch = prefetch;
  typename Words::Sums sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      sums[i][vector] = Words::zeros();
    }
  }
  const char* factor = static_cast<const char*>(a) + row * kRowBytes;
  const char* words = static_cast<const char*>(b) + kWordBytes * column;
  for (int k = 0; k < depth; ++k, factor += kWordBytes, words += kWordBytes * columns) {
    fetch.step();
    typename Simd::Ints vectors[kVectors];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      vectors[vector] = Simd::load_words(words + kWordBytes * vector * Simd::kLanes);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto factors = Simd::set_word(factor + i * kRowBytes);
#pragma GCC unroll 4
      for (int vector = 0; vector < kVectors; ++vector) {
        sums[i][vector] = Words::add(sums[i][vector], factors, vectors[vector]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      finish(row + i, column + vector * Simd::kLanes, sums[i][vector]);
    }
  }
  prefetch = fetch;
}

template <class Simd, class Words, int kRowBytes, int kRows, int kVectors, class Finish>
void word_columns(int row, int end, int column, const void* a, const void* b, int columns,
                  int depth, const Finish& finish, Prefetch& prefetch) {
  for (; row + kRows <= end; row += kRows) {
    word_tile<Simd, Words, kRowBytes, kRows, kVectors>(row, column, a, b, columns, depth, finish,
                                                       prefetch);
  }
  if constexpr (kRows > 1) {
    if (row < end) {
      word_columns<Simd, Words, kRowBytes, kRows / 2, kVectors>(row, end, column, a, b, columns,
                                                                depth, finish, prefetch);
    }
  }
}

template <class Simd, class Words, int kRowBytes, class Finish>
void word_product(int num_rows, const void* a, const void* b, int columns, int depth,
                  const Finish& finish, Prefetch prefetch) {
  int column = 0;
  if (num_rows <= kFewRows) {
    for (; column + 4 * Simd::kLanes <= columns; column += 4 * Simd::kLanes) {
      word_columns<Simd, Words, kRowBytes, kFewRows, 4>(0, num_rows, column, a, b, columns, depth,
                                                        finish, prefetch);
    }
  }
  for (; column + 2 * Simd::kLanes <= columns; column += 2 * Simd::kLanes) {
    word_columns<Simd, Words, kRowBytes, Simd::kRows, 2>(0, num_rows, column, a, b, columns, depth,
                                                         finish, prefetch);
  }
  for (; column < columns; column += Simd::kLanes) {
    word_columns<Simd, Words, kRowBytes, Simd::kRows, 1>(0, num_rows, column, a, b, columns, depth,
                                                         finish, prefetch);
  }
}

// Transposes words [kPositions][stride] to [columns][kPositions], in whole squares of vectors.
template <class Square>
void transpose_words(const void* from, int64_t stride_bytes, int columns, void* to) {
  for (int position = 0; position < kPageTokens; position += Square::kLanes) {
    for (int i = 0; i < columns; i += Square::kLanes) {
      typename Square::Vector words[Square::kLanes];
      Square::load_quads(
          static_cast<const int8_t*>(from) + position * stride_bytes + kWordBytes * i, stride_bytes,
          words);
      char* word = static_cast<char*>(to) + kWordBytes * (i * kPageTokens + position);
#pragma GCC unroll 16
      for (int k = 0; k < Square::kLanes; ++k, word += kWordBytes * kPageTokens) {
        std::memcpy(word, &words[k], sizeof words[k]);
      }
    }
  }
}

}  // namespace
}  // namespace hearth

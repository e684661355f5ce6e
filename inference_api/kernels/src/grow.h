// Memory that is kept between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hearth {
namespace {

template <class T>
void grow(std::vector<T>& memory, int64_t size) {
  if (memory.size() < static_cast<size_t>(size)) {
    memory.resize(static_cast<size_t>(size));
  }
}

}  // namespace
}  // namespace hearth

// Unpacks blocks to weights.
#pragma once

#include "kernels.h"

namespace hearth {

// Writes the weights of one output of a packed matrix.
void unpack_row(Bits bits, const void* packed, int64_t num_groups, int64_t output, float* weights);

}  // namespace hearth

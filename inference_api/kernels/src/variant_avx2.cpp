#include "attention.h"
#include "isa_256.h"
#include "linear.h"
#include "pack.h"
#include "quantise.h"

namespace hearth {

const Kernels kAvx2 = {quantise_row, pack_row, linear_panels<Avx2>, attend<Simd256>};

}  // namespace hearth

#include "attention.h"
#include "isa_avx512.h"
#include "linear.h"
#include "pack.h"
#include "quantise.h"

namespace hearth {

const Kernels kAvx512Vnni = {quantise_row, pack_row, linear_panels<Avx512Vnni>, attend<Simd512>};

}  // namespace hearth

#include "attention.h"
#include "isa_256.h"
#include "linear.h"
#include "pack.h"
#include "quantise.h"

namespace hearth {

const Kernels kAvxVnni = {quantise_row, pack_row, linear_panels<AvxVnni>, attend<Simd256>};

}  // namespace hearth

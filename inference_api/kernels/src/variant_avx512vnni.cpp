#include "attention.h"
#include "heads.h"
#include "isa_avx512.h"
#include "linear.h"
#include "norm.h"
#include "pack.h"
#include "quantise.h"
#include "short_conv.h"
#include "weigh.h"

namespace hearth {

const Kernels kAvx512Vnni = {prepare_row,
                             pack_row,
                             norm_row,
                             write_heads<Simd512>,
                             nullptr,
                             0,
                             linear_panels<Avx512Vnni, Simd512>,
                             attend<Simd512>,
                             short_conv,
                             largest_of<Simd512>,
                             weigh<Simd512>};

}  // namespace hearth

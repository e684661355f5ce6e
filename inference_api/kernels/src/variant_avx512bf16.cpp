#include "activation.h"
#include "attention.h"
#include "delta.h"
#include "heads.h"
#include "isa_avx512.h"
#include "linear.h"
#include "norm.h"
#include "pack.h"
#include "quantise.h"
#include "short_conv.h"
#include "weigh.h"

namespace hearth {

const Kernels kAvx512Bf16 = {prepare_row,
                             pack_row,
                             norm_row,
                             write_heads<Simd512>,
                             nullptr,
                             nullptr,
                             linear_panels<Avx512Bf16, Simd512, &kAvx512VnniForms>,
                             attend<Simd512BFloat16>,
                             short_conv,
                             gate<Simd512>,
                             delta_head<Simd512>,
                             largest_of<Simd512>,
                             weigh<Simd512>};

}  // namespace hearth

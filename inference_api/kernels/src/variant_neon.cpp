#include "activation.h"
#include "attention.h"
#include "delta.h"
#include "heads.h"
#include "isa_neon.h"
#include "linear.h"
#include "norm.h"
#include "pack.h"
#include "quantise.h"
#include "short_conv.h"
#include "weigh.h"

namespace hearth {

const Kernels kNeon = {prepare_row,
                       pack_row,
                       norm_row,
                       write_heads<Simd128>,
                       nullptr,
                       nullptr,
                       linear_panels<Neon, Simd128, &kNeonForms>,
                       attend<Simd128>,
                       short_conv,
                       gate<Simd128>,
                       delta_head<Simd128>,
                       largest_of<Simd128>,
                       weigh<Simd128>};

}  // namespace hearth

#include "activation.h"
#include "attention.h"
#include "delta.h"
#include "heads.h"
#include "isa_avx512.h"
#include "linear.h"
#include "linear_amx.h"
#include "norm.h"
#include "pack.h"
#include "quantise.h"
#include "short_conv.h"
#include "weigh.h"

namespace hearth {

const Kernels kAmx = {prepare_row,
                      pack_row,
                      norm_row,
                      write_heads<Simd512>,
                      fill_any_tiles,
                      min_tile_rows,
                      linear_panels_by_tiles,
                      attend<Simd512>,
                      short_conv,
                      gate<Simd512>,
                      delta_head<Simd512>,
                      largest_of<Simd512>,
                      weigh<Simd512>};

}  // namespace hearth

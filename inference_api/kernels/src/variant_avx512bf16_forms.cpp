#include "isa_avx512.h"
#include "linear_forms.h"

namespace hearth {

const LinearPanels kAvx512Bf16Forms = form_panels<Avx512Bf16, Simd512>;

}  // namespace hearth

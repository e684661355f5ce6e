#include "isa_256.h"
#include "linear_forms.h"

namespace hearth {

const LinearPanels kAvx2Forms = form_panels<Avx2, Simd256>;

}  // namespace hearth

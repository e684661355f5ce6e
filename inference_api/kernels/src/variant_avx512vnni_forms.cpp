#include "isa_avx512.h"
#include "linear_forms.h"

namespace hearth {

const LinearPanels kAvx512VnniForms = form_panels<Avx512Vnni, Simd512>;

}  // namespace hearth

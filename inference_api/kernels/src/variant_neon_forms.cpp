#include "isa_neon.h"
#include "linear_forms.h"

namespace hearth {

const LinearPanels kNeonForms = form_panels<Neon, Simd128>;

}  // namespace hearth

"""The processor's own products, beside which `bench-step` puts those of a step."""

import pytest

from lab.kernels.peak import ROUNDS, WITH_SCALES, Peak


@pytest.mark.parametrize("form", ["int8", "int4", WITH_SCALES, "bfloat16", "float32"])
def test_every_thread_multiplies_as_often(form: str) -> None:
    one, two = (Peak(form, num_threads).multiply() for num_threads in (1, 2))
    assert two == 2 * one
    assert one % (2 * ROUNDS) == 0


def test_int4_is_multiplied_as_int8() -> None:
    assert Peak("int4", 1).multiply() == Peak("int8", 1).multiply()

from dataclasses import replace

from inference_api.loading.options import EngineOptions
from inference_api.settings import Settings


def test_every_option_is_the_setting_of_its_name() -> None:
    settings = Settings(
        device="cuda",
        dtype="bfloat16",
        user_rows=7,
        max_seq_len=99,
        quantization="int4",
        kv_cache_dtype="float16",
        experts_on_cpu=3,
    )
    assert EngineOptions.from_settings(settings) == EngineOptions(
        device="cuda",
        dtype="bfloat16",
        max_rows=7,
        max_seq_len=99,
        quantization="int4",
        kv_cache_dtype="float16",
        experts_on_cpu=3,
    )


def test_auto_is_float32_on_the_cpu_and_bfloat16_on_cuda() -> None:
    options = EngineOptions(max_rows=1)
    assert options.on("cpu").dtype == "float32"
    assert options.on("cpu", keeps_bfloat16=True).dtype == "bfloat16"
    assert options.on("cuda").dtype == "bfloat16"
    given = EngineOptions(dtype="float32", max_rows=1)
    assert given.on("cuda") == EngineOptions(device="cuda", dtype="float32", max_rows=1)
    assert given.on("cpu", keeps_bfloat16=True).dtype == "float32"


def test_auto_rounds_no_cache_beside_weights_that_it_does_not_round() -> None:
    options = EngineOptions(max_rows=1)
    assert options.on("cpu", keeps_bfloat16=True).kv_cache_dtype == "float32"
    rounded = (replace(options, dtype="bfloat16"), replace(options, quantization="int8"))
    for asked in rounded:
        assert asked.on("cpu", keeps_bfloat16=True).kv_cache_dtype == "auto"
    given = replace(options, kv_cache_dtype="int8")
    assert given.on("cpu", keeps_bfloat16=True).kv_cache_dtype == "int8"

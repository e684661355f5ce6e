"""The catalogue: its facts, the roofline under them, and the calibration that ships."""

import pytest

from lab.catalogue.fit import calibrate
from lab.catalogue.observations import published
from optimizer.catalogue.calibration import shipped_calibration
from optimizer.catalogue.facts import AcceleratorFacts, ModelFacts, Precision, shipped_facts
from optimizer.catalogue.roofline import PARTS, Machine
from optimizer.catalogue.speeds import published_speed
from optimizer.errors import InvalidRequest

FACTS = shipped_facts()
WEIGHTS = PARTS.index("weights")


def machine(
    model: str, accelerator: str, cards: int = 1, precision: Precision | None = None
) -> Machine:
    facts = FACTS.models[model]
    return Machine(facts, FACTS.accelerators[accelerator], cards, precision or facts.published)


@pytest.mark.parametrize(
    ("model", "gigabytes"),
    [
        # Of the published files: the sum of model-*.safetensors on each model's page.
        ("llama-3.1-8b", 16.06),
        ("llama-3.3-70b", 141.1),
        ("qwen3-8b", 16.38),
        ("qwen3-32b", 65.52),
        ("qwen3-30b-a3b", 61.06),
        ("gpt-oss-20b", 13.76),
        ("gpt-oss-120b", 65.25),
    ],
)
def test_weights_weigh_what_the_files_do(model: str, gigabytes: float) -> None:
    assert machine(model, "h100").weights_bytes / 1e9 == pytest.approx(gigabytes, rel=0.002)


@pytest.mark.parametrize(("precision", "tokens"), [("bf16", 377_024), ("fp8", 430_272)])
def test_memory_holds_the_tokens_that_an_engine_found_room_for(precision: str, tokens: int) -> None:
    """`kv_cache_tokens` of derived/csv/runs.csv, beside the measurements of qwen3-8b on h100."""
    seen = machine("qwen3-8b", "h100", 1, Precision(precision))
    assert seen.rows_that_fit(1) == pytest.approx(tokens, rel=0.02)


def test_experts_are_read_as_far_as_tokens_choose_them() -> None:
    mixed = machine("gpt-oss-120b", "h100")
    one, some, many = (mixed.step(rows, 0)[WEIGHTS] for rows in (1, 32, 4096))
    whole_ms = mixed.weights_bytes / 3.35e9
    assert one < 0.15 * whole_ms
    assert one < some < many < whole_ms


def test_cards_divide_reading_and_add_waiting() -> None:
    one, two = machine("llama-3.3-70b", "h200", 1), machine("llama-3.3-70b", "h200", 2)
    assert two.step(8, 1000)[WEIGHTS] == pytest.approx(one.step(8, 1000)[WEIGHTS] / 2)
    assert one.link_ms(100) == 0 < two.link_ms(100)
    assert one.step(1, 0)[PARTS.index("sync")] == 0 < two.step(1, 0)[PARTS.index("sync")]


def test_layers_with_a_window_keep_no_more_than_it() -> None:
    gemma = machine("gemma-3-27b", "h100")
    full_layers = gemma.model.layers - gemma.model.window_layers
    grown = gemma.cache_bytes(5000) - gemma.cache_bytes(4000)
    assert grown == pytest.approx(1000 * full_layers * 2 * 16 * 128 * 2)


GIB = 2**30


@pytest.mark.parametrize(
    ("model", "tokens", "size_bytes", "rel"),
    [
        # By hand from the configurations, as published with the models' architectures.
        ("gemma-4-12b", 32_768, 0.81 * GIB, 0.01),
        ("gemma-4-26b-a4b", 32_768, 0.82 * GIB, 0.01),
        ("gemma-4-31b", 4_096, 1.09 * GIB, 0.01),
        ("gemma-4-31b", 262_144, 20.78 * GIB, 0.01),
        ("qwen3.6-35b-a3b", 32_768, 671_088_640 + 30 * 2_097_152, 0.01),
        ("qwen3.6-27b", 1, 16 * 2 * 4 * 256 * 2 + 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2), 1e-9),
        ("glm-4.7-flash", 1_000, 47 * (512 + 64) * 2 * 1_000, 1e-9),
    ],
)
def test_rows_keep_what_each_kind_of_layer_does(
    model: str, tokens: int, size_bytes: float, rel: float
) -> None:
    assert machine(model, "h200").cache_bytes(tokens) == pytest.approx(size_bytes, rel=rel)


def test_no_part_is_quicker_than_the_datasheet() -> None:
    efficiency = shipped_calibration().efficiency
    assert min(efficiency[WEIGHTS : PARTS.index("request")]) >= 1


def test_the_calibration_is_that_of_the_published_measurements() -> None:
    """Where it is not: `python -m lab.catalogue --write`, and correct what docs/plan.md says."""
    shipped, made = shipped_calibration(), calibrate(FACTS, published())
    assert shipped.efficiency == pytest.approx(made.efficiency)
    assert [each.pair for each in shipped.left_out] == [each.pair for each in made.left_out]
    for ours, theirs in zip(shipped.fitted, made.fitted, strict=True):
        assert (ours.key, ours.sources) == (theirs.key, theirs.sources)
        assert (ours.steps, ours.prompts) == pytest.approx((theirs.steps, theirs.prompts))
    # What the documentation says; a new measurement may move it.
    assert 0.1 < shipped.dense_error < 0.3
    assert 0.2 < shipped.experts_error < 0.5


def test_a_pair_with_measurements_is_fitted_and_says_of_what() -> None:
    calibration = shipped_calibration()
    speed = published_speed(calibration, machine("qwen3-8b", "h100"), 128, 1024, "h100")
    assert speed is not None
    assert (speed.kind, speed.prompts_are_estimated) == ("fitted", False)
    assert speed.error < calibration.dense_error
    assert all(source.startswith("https://") for source in speed.sources)
    assert speed.perf.service_curve is not None
    steps = {point.rows: point.ms for point in speed.perf.service_curve.decode_ms}
    assert steps[1] == pytest.approx(6.87, rel=0.1)  # measured: 1000 / 145.66
    assert steps[64] == pytest.approx(9.7 * 0.95, rel=0.15)  # 64 of 6597 tokens/s, less prompts


def test_models_of_one_shape_share_their_measurements() -> None:
    calibration = shipped_calibration()
    twins = [
        published_speed(calibration, machine(name, "h200", 4), 512, 256, "4xh200")
        for name in ("llama-3.1-70b", "llama-3.3-70b")
    ]
    assert [twin and twin.kind for twin in twins] == ["fitted", "fitted"]


def test_what_does_not_fit_has_no_speed() -> None:
    calibration = shipped_calibration()
    assert published_speed(calibration, machine("llama-3.1-70b", "h100"), 1, 1, "h100") is None


@pytest.mark.parametrize("name", ["LLAMA-3.1-8B", " qwen/qwen3-8b ", "gpt-oss:20b"])
def test_names_and_aliases_are_found_in_any_case(name: str) -> None:
    assert FACTS.model(name).name in {"llama-3.1-8b", "qwen3-8b", "gpt-oss-20b"}


@pytest.mark.parametrize(("name", "near"), [("lama-3.1-8b", "llama-3.1-8b"), ("", "llama-3.1-8b")])
def test_unknown_names_are_answered_with_near_ones(name: str, near: str) -> None:
    with pytest.raises(InvalidRequest, match=near):
        FACTS.model(name)


def test_every_fact_has_its_source_and_every_price_its_day() -> None:
    entries: list[ModelFacts | AcceleratorFacts] = [
        *FACTS.models.values(), *FACTS.accelerators.values()
    ]  # fmt: skip
    assert all(entry.source.startswith("https://") for entry in entries)
    prices = [each.price for each in FACTS.accelerators.values() if each.price]
    assert len(prices) >= 10
    assert all(price.source.startswith("https://") and len(price.date) == 10 for price in prices)

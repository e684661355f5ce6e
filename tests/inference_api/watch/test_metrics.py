"""What is scraped is what happened, under our names and under vLLM's."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from inference_api._mock_inference_api_server import create_test_server
from inference_api.core.draft_depths import DraftDepths
from inference_api.core.record import GenerationRecord
from inference_api.core.served_model import StepTotals
from inference_api.core.state.pool import PageCounts
from inference_api.core.status import ModelSnapshot
from inference_api.inference_api_server import server_of
from inference_api.request import Caller, GenerationRequest, OutputQueue, SessionId
from inference_api.settings import Settings
from inference_api.watch.metrics import ServerMetrics, ServerState
from lab.kit.servers import eventually
from tests.inference_api.in_process import started

LABELS = '{model_name="hearth-tiny"}'
STATE = ServerState(32, 0, 0)
CALLER = Caller("r-1", "search", "/inference")
TIMES_S = (0.0,) * 6
RECORD = GenerationRecord(CALLER, "s", "m", 1, 0, 1, *TIMES_S, "stop", None, None, 1.0)


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    with started(create_test_server(Settings(mock_tokens_per_second=1e6))) as client:
        yield client


def scrape(client: FlaskClient) -> dict[str, float]:
    """Every sample by name and labels."""
    text = client.get("/metrics").text
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if not line.startswith("#")
    }


def test_generations_are_counted_with_their_tokens_under_both_names(client: FlaskClient) -> None:
    before = scrape(client)
    with client.post("/inference", json={"text": "four", "max_tokens": 4}) as response:
        assert response.get_data(as_text=True) == "four"
    after = scrape(client)

    def gained(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert gained('inference_requests_total{finish_reason="length",model_name="hearth-tiny"}') == 1
    assert gained(f"inference_prompt_tokens_sum{LABELS}") == 4
    assert gained(f"inference_completion_tokens_sum{LABELS}") == 4
    assert gained(f"inference_time_to_first_token_seconds_count{LABELS}") == 1
    assert gained(f"inference_inter_token_latency_seconds_count{LABELS}") == 3
    assert gained(f"inference_e2e_latency_seconds_count{LABELS}") == 1
    reason = '{finished_reason="length",model_name="hearth-tiny"}'
    assert gained(f"vllm:request_success_total{reason}") == 1
    assert gained(f"vllm:prompt_tokens_total{LABELS}") == 4
    assert gained(f"vllm:generation_tokens_total{LABELS}") == 4


def test_errors_are_counted_by_code(client: FlaskClient) -> None:
    name = 'inference_errors_total{code="invalid_request"}'
    before = scrape(client).get(name, 0.0)
    client.post("/inference", json={})
    assert scrape(client)[name] == before + 1


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("vllm:time_to_first_token_seconds", "inference_time_to_first_token_seconds"),
        ("vllm:time_per_output_token_seconds", "inference_inter_token_latency_seconds"),
        ("vllm:request_prompt_tokens", "inference_prompt_tokens"),
        ("vllm:request_generation_tokens", "inference_completion_tokens"),
    ],
)
def test_vllm_names_carry_the_same_numbers(client: FlaskClient, theirs: str, ours: str) -> None:
    with client.post("/inference", json={"text": "hello"}) as response:
        assert response.get_data(as_text=True) == "hello"
    samples = scrape(client)
    for suffix in ("_sum", "_count"):
        assert samples[f"{theirs}{suffix}{LABELS}"] == samples[f"{ours}{suffix}{LABELS}"] > 0


def test_usage_of_the_cache_counts_pages_that_rows_hold() -> None:
    app = create_test_server(Settings(user_rows=2, max_seq_len=64))
    backend = server_of(app).backend
    backend.load_model_and_tokenizer()
    rows = backend.models["hearth-tiny"].rows
    output = OutputQueue(SessionId("s"), "hearth-tiny")
    row = rows.assign(GenerationRequest(output, "hearth-tiny", (1,) * 40), 64, now_s=0.0)
    assert rows.reserve(row, 32)
    backend._publish(0.0)
    name = f"vllm:kv_cache_usage_perc{LABELS}"
    assert scrape(app.test_client())[name] == 1 / 4
    row.take_prompt(32)
    rows.free(row)  # the page stays for a prompt that goes on, until it is needed
    backend._publish(0.0)
    assert scrape(app.test_client())[name] == 0.0


def test_pages_of_a_model_and_of_its_draft_model_are_told_apart() -> None:
    snapshot = ModelSnapshot(pages=PageCounts(1, 2, 3), draft_pages=PageCounts(4, 5, 6))
    state = replace(STATE, snapshot=snapshot)
    registry = ServerMetrics(["m"], lambda name: state).registry
    names = [f"inference_{of}pages_{kind}" for of in ("", "draft_") for kind in PageCounts._fields]
    labels = {"model_name": "m"}
    assert [registry.get_sample_value(name, labels) for name in names] == [1, 2, 3, 4, 5, 6]
    assert registry.get_sample_value("vllm:kv_cache_usage_perc", labels) == 1 / 6


def test_cancelled_request_is_an_aborted_one_to_vllm() -> None:
    metrics = ServerMetrics(["m"], lambda name: STATE)
    metrics.ended(replace(RECORD, finish_reason="cancelled"))
    labels = {"model_name": "m", "finished_reason": "abort"}
    assert metrics.registry.get_sample_value("vllm:request_success_total", labels) == 1
    ours = {"model_name": "m", "finish_reason": "cancelled"}
    assert metrics.registry.get_sample_value("inference_requests_total", ours) == 1


def test_models_are_told_apart() -> None:
    busy = {"a": ModelSnapshot(busy_rows=1), "b": ModelSnapshot(busy_rows=2)}
    metrics = ServerMetrics(["a", "b"], lambda model: replace(STATE, snapshot=busy[model]))
    metrics.ended(replace(RECORD, model="b"))
    metrics.token_gap("b", 0.1)
    metrics.stepped("b", 3, 0.1)

    def value(name: str, model: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"model_name": model})

    assert [value("vllm:num_requests_running", model) for model in busy] == [1, 2]
    for name in ("e2e_latency_seconds", "inter_token_latency_seconds", "batch_size"):
        assert value(f"inference_{name}_count", "b") == 1
        assert not value(f"inference_{name}_count", "a")


def test_state_is_read_at_the_scrape(client: FlaskClient) -> None:
    samples = scrape(client)
    assert samples[f"inference_rows{LABELS}"] == 32
    assert samples[f"inference_rows_busy{LABELS}"] == 0
    assert samples[f"vllm:num_requests_waiting{LABELS}"] == 0


def test_text_is_what_prometheus_parses(client: FlaskClient) -> None:
    families = list(text_string_to_metric_families(client.get("/metrics").text))
    names = [family.name for family in families]
    assert "vllm:request_success" in names
    assert len(names) == len(set(names))


def test_every_decode_step_counts_its_rows(client: FlaskClient) -> None:
    before = scrape(client)
    with client.post("/inference", json={"text": "steps", "max_tokens": 5}) as response:
        assert response.get_data(as_text=True) == "steps"
    name = "inference_batch_size"
    count = f"{name}_count{LABELS}"
    eventually(lambda: scrape(client)[count] - before[count] == 5)  # after the answer has ended
    after = scrape(client)
    for each in (f"{name}_sum{LABELS}", f'{name}_bucket{{le="1.0",model_name="hearth-tiny"}}'):
        assert after[each] - before[each] == 5  # one row at a time


def test_step_times_are_together_up_to_a_power_of_two() -> None:
    metrics = ServerMetrics(["m"], lambda name: STATE)
    for batch_size in range(257):
        metrics.stepped("m", batch_size, 0.003)
    metrics.stepped("m", 6, 0.3)

    def value(group: int, suffix: str, **labels: str) -> float | None:
        name, group_labels = f"inference_step_seconds{suffix}", {"batch_size": str(group)}
        return metrics.registry.get_sample_value(name, {"model_name": "m"} | group_labels | labels)

    assert [value(group, "_count") for group in (0, 1, 2, 4, 8)] == [1, 1, 1, 2, 5]
    assert [value(2**n, "_count") for n in range(4, 9)] == [2 ** (n - 1) for n in range(4, 9)]
    assert [value(8, "_bucket", le=le) for le in ("0.002", "0.005", "0.5", "+Inf")] == [0, 4, 5, 5]
    assert value(8, "_sum") == pytest.approx(0.312)
    assert metrics.registry.get_sample_value("inference_batch_size_count", {"model_name": "m"}) == (
        257
    )


def test_phases_of_a_generation_make_up_its_time(client: FlaskClient) -> None:
    with client.post("/inference", json={"text": "phases"}) as response:
        assert response.get_data(as_text=True) == "phases"
    samples = scrape(client)

    def seconds(phase: str) -> float:
        return samples[f"inference_{phase}_seconds_sum{LABELS}"]

    assert seconds("prefill_time") > 0
    assert seconds("decode_time") > 0
    phases = seconds("queue_time") + seconds("prefill_time") + seconds("decode_time")
    assert phases == pytest.approx(seconds("e2e_latency"))
    assert seconds("queue_time") + seconds("prefill_time") == pytest.approx(
        seconds("time_to_first_token")
    )


def test_prompt_tokens_from_the_cache_are_counted(client: FlaskClient) -> None:
    before = scrape(client)
    for _ in range(2):
        with client.post("/inference", json={"text": "the same beginning"}) as response:
            assert response.get_data(as_text=True) == "the same beginning"
    after = scrape(client)

    def gained(name: str) -> float:
        return after[f"{name}{LABELS}"] - before.get(f"{name}{LABELS}", 0)

    assert gained("inference_reused_tokens_total") > 0
    prompts = gained("inference_prompt_tokens_sum")
    taken = gained("inference_prefilled_tokens_total") + gained("inference_reused_tokens_total")
    assert taken == prompts - 2  # the last token of each goes into its first decode step


def test_process_is_measured(client: FlaskClient) -> None:
    samples = scrape(client)
    assert samples["process_resident_memory_bytes"] > 0
    assert samples["process_open_fds"] > 0


def test_vllm_names_can_be_left_out() -> None:
    text = create_test_server(Settings(vllm_metrics=False)).test_client().get("/metrics").text
    assert "inference_requests" in text
    assert "vllm:" not in text


def test_drafts_are_counted_under_our_names_and_vllms() -> None:
    totals = StepTotals(drafts=2, drafted_tokens=8, accepted_tokens=5)
    state = replace(STATE, snapshot=ModelSnapshot(totals=totals))
    registry = ServerMetrics(["m"], lambda model: state).registry

    def values(*names: str) -> list[float | None]:
        return [registry.get_sample_value(f"{name}_total", {"model_name": "m"}) for name in names]

    assert values("inference_drafts", "inference_drafted_tokens", "inference_accepted_tokens") == [
        2,
        8,
        5,
    ]
    assert values(
        "vllm:spec_decode_num_drafts",
        "vllm:spec_decode_num_draft_tokens",
        "vllm:spec_decode_num_accepted_tokens",
    ) == [2, 8, 5]


def test_drafts_are_counted_by_depth_and_by_what_was_accepted() -> None:
    depths = DraftDepths()
    for drafted, accepted in ((3, 3), (3, 0), (1, 1)):
        depths.add(drafted, accepted)
    state = replace(STATE, snapshot=ModelSnapshot(depths=depths))
    registry = ServerMetrics(["m"], lambda model: state).registry

    def series(name: str, label: str) -> dict[str, float]:
        samples = [sample for family in registry.collect() for sample in family.samples]
        return {each.labels[label]: each.value for each in samples if each.name == name}

    assert series("inference_drafted_tokens_by_depth_total", "depth") == {"1": 3, "2": 2, "3": 2}
    accepted_by_depth = series("inference_accepted_tokens_by_depth_total", "depth")
    assert accepted_by_depth == {"1": 2, "2": 1, "3": 1}
    per_position = series("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
    assert per_position == {"0": 2, "1": 1, "2": 1}
    buckets = series("inference_accepted_tokens_per_draft_bucket", "le")
    assert [buckets[le] for le in ("0", "1", "2", "3", "32", "+Inf")] == [1, 2, 2, 3, 3, 3]
    labels = {"model_name": "m"}
    assert registry.get_sample_value("inference_accepted_tokens_per_draft_sum", labels) == 4
    assert registry.get_sample_value("inference_accepted_tokens_per_draft_count", labels) == 3

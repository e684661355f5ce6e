"""Settings: defaults, faults that name everything wrong at once, and the page that lists them."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from inference_api.errors import StartupError, UnknownModel
from inference_api.settings import ModelSettings, Settings, load_settings
from inference_api.settings.bundle_file import BundleMember

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_variables_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_ROWS", "8")
    monkeypatch.setenv("DRAIN_TIMEOUT", "2.5")
    monkeypatch.setenv("MODEL_ALIASES", "one, two")
    monkeypatch.setenv("MODEL", "/models/some-model/")
    settings = load_settings()
    assert (settings.user_rows, settings.drain_timeout_s) == (8, 2.5)
    assert settings.served_names == ("some-model", "one", "two")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/models/SmolLM2-135M.Q8_0.gguf", "SmolLM2-135M.Q8_0"),
        ("owner/model-gguf", "model-gguf"),
        ("/models/.gguf", ".gguf"),
    ],
)
def test_name_of_a_file_is_without_its_ending(model: str, name: str) -> None:
    assert Settings(model=model).default_model.name == name
    assert Settings(model=model, model_name="a.gguf").default_model.name == "a.gguf"


@pytest.mark.parametrize(
    ("written", "num_bytes"),
    [("auto", None), ("1024", 1024), ("1073741824", 2**30), ("1.5 GiB", 3 * 2**29), ("1KiB", 1024)],
)
def test_memory_is_said_in_bytes_or_in_larger_units(
    monkeypatch: pytest.MonkeyPatch, written: str, num_bytes: int | None
) -> None:
    monkeypatch.setenv("KV_CACHE_MEMORY", written)
    assert load_settings().kv_cache_memory == num_bytes


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("-1", "is not a size; give bytes, or"),
        ("1e18", "is not a size"),
        ("1 TB", "is not a size"),
        ("0", "KV_CACHE_MEMORY=0: give 1024 or more, or unset it."),
        ("2000TiB", "give 1125899906842624 or less, or unset it."),
    ],
)
def test_fault_of_a_size_names_the_variable_and_what_it_can_be(
    monkeypatch: pytest.MonkeyPatch, written: str, fault: str
) -> None:
    monkeypatch.setenv("KV_CACHE_MEMORY", written)
    with pytest.raises(StartupError) as raised:
        load_settings()
    [told] = raised.value.faults
    assert told.startswith("KV_CACHE_MEMORY=")
    assert fault in told


def test_one_model_is_a_list_of_one() -> None:
    settings = Settings(model="/models/a", user_rows=3, quantization="int8")
    [model] = settings.served_models
    assert (model.name, model.user_rows, model.quantization) == ("a", 3, "int8")


def test_who_names_no_quantization_gets_what_the_files_have() -> None:
    member = BundleMember(name="a", source="/models/a")
    assert ModelSettings().quantization == "auto"
    assert Settings().of_member(member).quantization == "auto"


def test_several_models_share_what_they_do_not_say_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("USER_ROWS", "16")
    monkeypatch.setenv("QUANTIZATION", "int8")
    monkeypatch.setenv(
        "MODELS", '[{"model": "/models/a"}, {"model": "b/c", "model_name": "sql", "user_rows": 2}]'
    )
    settings = load_settings()
    assert [(each.name, each.user_rows, each.quantization) for each in settings.served_models] == [
        ("a", 16, "int8"),
        ("sql", 2, "int8"),
    ]
    assert settings.default_model.name == "a"
    assert settings.served_names == ("a", "sql", "falcon40b")
    assert [settings.name_of(name) for name in settings.served_names] == ["a", "sql", "a"]
    assert settings.threads == 16 + 2 + 2 * 64 + 16


def test_an_alias_that_is_the_name_of_a_model_is_listed_once_and_is_that_model() -> None:
    models = tuple(ModelSettings(model=name) for name in ("/models/a", "/models/falcon40b"))
    settings = Settings(models=models)
    assert settings.served_names == ("a", "falcon40b")
    assert settings.name_of("falcon40b") == "falcon40b"


def test_name_of_no_model_is_refused_with_those_that_are() -> None:
    with pytest.raises(UnknownModel, match="'x' is not served here; served: a, falcon40b"):
        Settings(model="/models/a").name_of("x")
    with pytest.raises(UnknownModel) as refused:
        Settings(model="/models/a").name_of("x" * 10**6)
    assert len(str(refused.value)) < 500


def test_pattern_stands_for_names_that_no_list_shows() -> None:
    models = tuple(ModelSettings(model=name) for name in ("/models/a", "/models/claude-sql"))
    settings = Settings(models=models, model_aliases=("gpt-4", "claude-*"))
    assert settings.served_names == ("a", "claude-sql", "gpt-4")
    assert settings.name_of("claude-sonnet-4-5") == "a"
    assert settings.name_of("claude-sql") == "claude-sql"
    with pytest.raises(UnknownModel, match="served: a, claude-sql, gpt-4"):
        settings.name_of("claude")


def test_bounds_of_the_native_routes_are_for_names_not_for_patterns() -> None:
    settings = Settings(model_aliases=("falcon40b", "claude-*"))
    names = ("falcon40b", "claude-sonnet-4-5", "claude-*")
    assert [settings.has_strict_bounds(name) for name in names] == [True, False, False]


@pytest.mark.parametrize(
    ("aliases", "fault"),
    [
        (",".join(map(str, range(65))), "give 64 or fewer, or unset it"),
        ("a" * 257, "shorten it, or unset it"),
    ],
)
def test_too_many_or_too_long_names_are_refused(
    monkeypatch: pytest.MonkeyPatch, aliases: str, fault: str
) -> None:
    monkeypatch.setenv("MODEL_ALIASES", aliases)
    with pytest.raises(StartupError, match=fault):
        load_settings()


@pytest.mark.parametrize(
    ("models", "fault"),
    [
        ("[", "MODELS='[': is no JSON"),
        ("[]", "MODELS='[]': is no list of models"),
        ('{"model": "a"}', "is no list of models"),
        ("[1]", "MODELS[0]=1: give an object, or unset it."),
        ('[{"model": "a", "user_rows": 0}]', "MODELS[0].user_rows=0: give 1 or more, or unset it."),
        ('[{"model": "a"}, {"rows": 3}]', "MODELS[1].rows=3: is not known; leave it out."),
        ('[{"model": "a"}, {"model": "x/a"}]', "two models have one name (a, a); set model_name"),
        (str(json.dumps([{"model": str(n)} for n in range(9)])), "give 8 or fewer, or unset it."),
        ("[" * 100_000, "is no JSON"),
        ('[{"model": "/"}]', "MODELS[0].model='/': has no printable name"),
        ('[{"model": "a", "model_name": "b\\nc"}]', "MODELS[0].model_name='b\\nc': has no"),
    ],
)
def test_faults_of_a_list_of_models_name_the_entry_and_the_field(
    monkeypatch: pytest.MonkeyPatch, models: str, fault: str
) -> None:
    monkeypatch.setenv("MODELS", models)
    with pytest.raises(StartupError) as caught:
        load_settings()
    assert fault in str(caught.value)


def test_one_model_beside_a_list_of_them_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", "/models/a")
    monkeypatch.setenv("MODELS", '[{"model": "/models/b"}]')
    with pytest.raises(StartupError, match="one of MODEL and MODEL_NAME is set too"):
        load_settings()


BUNDLE = """
version: 1
memory_limit: 6GiB
fast_memory_limit: 2GiB
max_queue: 100
default: b
experts:
  - {name: a, source: owner/a, quantisation: int8, context: 1024, rows: {min: 2, max: 16}}
  - {name: b, source: owner/b, rows: {min: 3}, speculation: ngram}
  - {name: pair, target: {source: owner/a}, draft: {source: owner/c, tokens: 4}}
"""


@pytest.fixture
def bundle_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "bundle.yaml"
    file.write_text(BUNDLE)
    monkeypatch.setenv("BUNDLE", str(file))
    return file


@pytest.mark.usefixtures("bundle_file")
def test_members_of_a_bundle_are_models_the_default_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTYPE", "bfloat16")
    monkeypatch.setenv("SPECULATION_TOKENS", "5")
    settings = load_settings()
    assert settings.bundle is not None
    b, a, pair = settings.served_models
    assert settings.default_model is b
    assert settings.served_names == ("b", "a", "pair", "falcon40b")
    assert settings.name_of("falcon40b") == "b"
    assert settings.of_model("a") is a
    common = {"dtype": "bfloat16", "device": "cpu"}
    assert a == ModelSettings(
        model="owner/a",
        model_name="a",
        quantization="int8",
        max_seq_len=1024,
        user_rows=16,
        speculation_tokens=5,
        **common,
    )
    assert (b.user_rows, b.max_seq_len, b.speculation, b.speculation_tokens) == (
        32,
        None,
        "ngram",
        5,
    )
    assert (pair.model, pair.used_draft_model, pair.speculation_tokens) == ("owner/a", "owner/c", 4)


@pytest.mark.usefixtures("bundle_file")
def test_rows_and_queue_are_those_of_a_whole_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_ROWS", "16")
    settings = load_settings()
    assert (settings.all_user_rows, settings.queue_capacity) == (16, 100)
    assert settings.threads == 16 + 100 + 16


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MODEL", "/models/a"),
        ("MODEL_NAME", "a"),
        ("MODELS", '[{"model": "a"}]'),
        ("QUANTIZATION", "int8"),
        ("MAX_SEQ_LEN", "512"),
        ("SPECULATION", "ngram"),
        ("MEDUSA_HEADS", "heads"),
        ("DRAFT_MODEL", "a"),
        ("MAX_INPUT_QSIZE", "7"),
        ("BATCHING", "dynamic"),
    ],
)
def test_what_a_bundle_says_is_refused_beside_it(
    bundle_file: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(StartupError) as caught:
        load_settings()
    assert caught.value.faults == (
        f"BUNDLE={bundle_file}: {variable} is set too, and the file has a key for that; unset one "
        "of them.",
    )


@pytest.mark.usefixtures("bundle_file")
@pytest.mark.parametrize(("device", "of_experts"), [("cuda", "cuda"), ("auto", "cpu")])
def test_bundle_is_served_on_a_gpu_only_if_it_is_said(
    device: str, of_experts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEVICE", device)
    assert {each.device for each in load_settings().served_models} == {of_experts}


def test_torch_on_the_cpu_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS", "false")
    with pytest.raises(StartupError) as caught:
        load_settings()
    [fault] = caught.value.faults
    assert fault == (
        "KERNELS='false': is served no more: on the CPU the kernels multiply; correct it or unset "
        "it."
    )


def test_faults_of_a_bundle_are_listed_beside_those_of_variables(
    bundle_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle_file.write_text(BUNDLE.replace("rows: {min: 3}", "rows: {max: 3}, pined: true"))
    monkeypatch.setenv("SERVICE_PORT", "0")
    with pytest.raises(StartupError) as caught:
        load_settings()
    port, fault = caught.value.faults
    assert port.startswith("SERVICE_PORT='0': ")
    assert fault.startswith(
        f"BUNDLE={bundle_file}: experts[1].pined: is not known (did you mean pinned?); correct it"
    )


def test_rows_that_members_need_are_bounded_by_user_rows(
    bundle_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER_ROWS", "5")
    with pytest.raises(StartupError) as caught:
        load_settings()
    assert caught.value.faults == (
        f"BUNDLE={bundle_file}: rows.min: need 6 rows, limit USER_ROWS=5, over by 1; lower "
        "rows.min or raise USER_ROWS.",
        f"BUNDLE={bundle_file}: experts[0].rows.max: 16 is above USER_ROWS=5; lower it or raise "
        "USER_ROWS.",
    )


def test_bundle_that_is_no_file_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNDLE", "/no/bundle.yaml")
    with pytest.raises(StartupError, match=r"/no/bundle\.yaml is not a file; give the path of a"):
        load_settings()


def test_threads_cover_rows_queue_and_control_routes() -> None:
    assert Settings().threads == 32 + 64 + 16


def test_every_fault_is_named_with_value_and_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_ROWS", "0")
    monkeypatch.setenv("DTYPE", "float64")
    monkeypatch.setenv("QUANTIZATION", "int3")
    with pytest.raises(StartupError) as caught:
        load_settings()
    message = str(caught.value)
    assert "USER_ROWS='0': give 1 or more, or unset it." in message
    assert "DTYPE='float64'" in message
    assert "QUANTIZATION='int3'" in message


@pytest.mark.parametrize("models", ["", '[{"model": "a"}, {"model": "b", "user_rows": 2}]'])
def test_dynamic_batch_above_the_rows_of_a_model_is_refused(
    monkeypatch: pytest.MonkeyPatch, models: str
) -> None:
    monkeypatch.setenv("USER_ROWS", "8" if models else "2")
    monkeypatch.setenv("MODELS", models)
    assert load_settings().batching == "continuous"
    monkeypatch.setenv("BATCHING", "dynamic")
    with pytest.raises(StartupError, match="MAX_BATCH=4: is above USER_ROWS=2; lower it or raise"):
        load_settings()
    monkeypatch.setenv("MAX_BATCH", "2")
    assert load_settings().max_batch == 2


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Settings().user_rows = 3  # type: ignore[misc]


def test_secret_is_not_shown() -> None:
    assert "long enough to be" not in repr(Settings(jwt_secret="long enough to be a secret"))


def test_every_variable_is_documented_with_its_default_and_bounds() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    documented = {row.split("`")[1]: row.split("|") for row in rows}
    marks = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    for name, field in Settings.model_fields.items():
        _, _, default, bounds, *_ = documented[(field.alias or name).upper()]
        if isinstance(field.default, bool | int | float) and "iB" not in bounds:
            assert default.strip() == f"`{str(field.default).lower()}`", name
        for mark, sign in marks.items():
            for bound in [getattr(each, mark) for each in field.metadata if hasattr(each, mark)]:
                assert f"{sign} {bound}" in bounds or "iB" in bounds, name

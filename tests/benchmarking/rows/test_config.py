"""config.yaml, model_configs and the environment: defaults, and every fault by its name."""

from pathlib import Path

import pytest

from benchmarking.errors import InvalidConfig
from benchmarking.records import Workload
from benchmarking.rows.config import BenchmarkConfig, read_config
from benchmarking.rows.model_configs import Cells, read_model_configs
from benchmarking.settings import load_settings
from lab.kit.servers import ROOT

HEADER = (
    "model_name,input_tokens,output_tokens,num_requests,concurrent_requests,qps,"
    "qps_distribution,multimodal_img_size"
)


def config_of(tmp_path: Path, text: str) -> BenchmarkConfig:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return read_config(path)


def faults_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(InvalidConfig) as error:
        config_of(tmp_path, text)
    return str(error.value)


def csv_of(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "models.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def row_fault(tmp_path: Path, line: str) -> str:
    """What is said of a wrong second row; the first is read all the same."""
    loads, faults = read_model_configs(csv_of(tmp_path, HEADER, "m,100,10,5,1,,,", line))
    assert len(loads) == 1
    (fault,) = faults
    return fault


def test_all_documented_keys_have_their_defaults(tmp_path: Path) -> None:
    config = config_of(tmp_path, "model_configs_path: ~/m.csv")
    assert config.model_configs_path == Path.home() / "m.csv"
    assert config.llm_api == "sncloud"
    assert config.output_files_dir == Path("..")
    assert config.consolidated_results_dir is None
    assert (config.timeout, config.time_delay) == (600, 0)
    assert (config.concurrency_enabled, config.max_workers) == (False, 4)
    assert config.use_multiple_prompts is False


def test_an_empty_folder_for_the_workbook_means_none(tmp_path: Path) -> None:
    text = "model_configs_path: m.csv\nconsolidated_results_dir: ''"
    assert config_of(tmp_path, text).consolidated_results_dir is None


def test_every_wrong_key_of_a_config_is_named(tmp_path: Path) -> None:
    text = "timeout: soon\nmax_workers: 0\napi_key: abc\nconsolidated_name: '{day}'"
    message = faults_of(tmp_path, text)
    assert "model_configs_path: is missing" in message
    assert 'timeout: is "soon"; give a number' in message
    assert "max_workers: is 0; give 1 or more" in message
    assert "api_key: is not known; leave it out; known keys: timeout, " in message
    assert "consolidated_name: only {run_name} and {date} can be filled in" in message


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("llm_api: sambastudio", "not included"),
        ("llm_api: other", "give 'sncloud', 'openai' or 'hearth'"),
        (
            "api_base: localhost:7000",
            "api_base: is no address; give one like http://127.0.0.1:7000",
        ),
        ("api_base: http://me:secret@host/v1", "BENCHMARK_API_KEY"),
        ("run_name: ../up", 'run_name: is "../up"; give one that fits'),
        ("sampling_params: {stream: false}", "stream belongs to the benchmark"),
        ("sampling_params: {top_p: .nan}", "NaN and infinity cannot be sent"),
        ("consolidated_name: '{run_name.__class__}'", "only {run_name} and {date}"),
        ("consolidated_name: '{run_name:>99999999}'", "only {run_name} and {date}"),
        ("seed: 1\nseed: 2", "appears twice"),
        ("sampling_params: {a: &a [1], b: [*a, *a]}", "anchors and aliases"),
        (f"sampling_params: {'[' * 100_000}", "nested more than 8 levels"),
    ],
)
def test_values_that_cannot_work_are_refused(tmp_path: Path, line: str, part: str) -> None:
    assert part in faults_of(tmp_path, f"model_configs_path: m.csv\n{line}")


@pytest.mark.parametrize("text", ["a: [", "just words", "", "[" * 100_000])
def test_what_is_no_mapping_is_no_config(tmp_path: Path, text: str) -> None:
    assert str(tmp_path / "config.yaml") in faults_of(tmp_path, text)


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="nowhere"):
        read_config(tmp_path / "nowhere.yaml")


def test_the_shipped_example_is_valid() -> None:
    config = read_config(ROOT / "benchmarking" / "config.yaml")
    loads, faults = read_model_configs(ROOT / config.model_configs_path)
    assert not faults
    assert {load.qps_distribution for load in loads} == {
        "constant",
        "uniform",
        "exponential",
    }
    assert (ROOT / config.model_configs_path).read_text().splitlines()[0] == HEADER
    assert HEADER.split(",") == list(Cells.model_fields)


def test_both_modes_are_read(tmp_path: Path) -> None:
    path = csv_of(tmp_path, HEADER, "m,100,10,5,4,0,,small", "n,40,1,1,,2.5,exponential,na")
    loads, _ = read_model_configs(path)
    assert loads == [
        Workload("m", 100, 10, 5, concurrency=4, image_size="small"),
        Workload("n", 40, 1, 1, qps=2.5, qps_distribution="exponential"),
    ]


@pytest.mark.parametrize(
    ("cell", "size"), [("N/A", "na"), ("Small", "small"), ("MEDIUM", "medium"), ("Large", "large")]
)
def test_image_sizes_are_read_as_the_kits_readme_writes_them(
    tmp_path: Path, cell: str, size: str
) -> None:
    (load,), _ = read_model_configs(csv_of(tmp_path, HEADER, f"m,100,10,5,4,,,{cell}"))
    assert load.image_size == size


def test_older_files_lack_columns_and_spreadsheets_add_marks(tmp_path: Path) -> None:
    path = tmp_path / "models.csv"
    text = "num_requests,model_name,input_tokens,output_tokens,concurrent_requests\r\n"
    path.write_text("\ufeff" + text + "5,m, 100 ,10.0,2\r\n,,,,\r\n", encoding="utf-8")
    loads, _ = read_model_configs(path)
    assert loads == [Workload("m", 100, 10, 5, concurrency=2)]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("m,39,10,5,1,,,", 'column input_tokens: is "39"; give 40 or more'),
        ("m,many,10,5,1,,,", 'column input_tokens: is "many"; give an integer'),
        ("m,100,,5,1,,,", "column output_tokens: is missing; give it"),
        ("m,100,10,0,1,,,", 'column num_requests: is "0"; give 1 or more'),
        ("m,100,10,5,-1,,,", 'column concurrent_requests: is "-1"; give 0 or more'),
        ("m,100,10,5,,inf,,", 'column qps: is "inf"; give a finite number'),
        ("m,100,10,5,,1,poisson,", 'column qps_distribution: is "poisson"; give '),
        ("m,100,10,5,1,,,huge", 'column multimodal_img_size: is "huge"; give '),
        ("m,100,10,5,1,2,,", "columns concurrent_requests=1 and qps=2"),
        ("m,100,10,5,,,,", "columns concurrent_requests and qps: both are empty or 0"),
        ("m,100,10,5,1,,,na,7", "more cells than columns: '7'"),
        (",100,10,5,1,,,", "column model_name: is missing; give it"),
    ],
)
def test_a_wrong_cell_is_named_and_the_other_rows_stay(
    tmp_path: Path, line: str, fault: str
) -> None:
    assert row_fault(tmp_path, line).startswith(f"line 3, {fault}")


def test_every_wrong_cell_of_a_row_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as error:
        read_model_configs(csv_of(tmp_path, HEADER, "m,1,x,5,1,,,"))
    assert len(error.value.faults) == 2


def test_images_do_not_go_with_prompts_drawn_from_a_list(tmp_path: Path) -> None:
    path = csv_of(tmp_path, HEADER, "m,100,10,5,1,,,small", "m,100,10,5,1,,,na")
    _, (fault,) = read_model_configs(path, images_allowed=False)
    assert "use_multiple_prompts" in fault


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        (["model_name,input_tokens,output_tokens"], "column num_requests is missing"),
        ([HEADER + ",qsp"], "column 'qsp' is not known"),
        ([HEADER + ",qps"], "column qps appears twice"),
        ([HEADER], "holds no rows"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, lines: list[str], part: str) -> None:
    with pytest.raises(InvalidConfig, match=part):
        read_model_configs(csv_of(tmp_path, *lines))


def test_the_environment_is_read_under_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BENCHMARK_API_BASE", "BENCHMARK_API_KEY", "SAMBANOVA_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SAMBANOVA_API_KEY", "other")
    settings = load_settings()
    assert settings.api_base == "http://127.0.0.1:7000/v1"
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == "other"
    assert "other" not in repr(settings)


def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BENCHMARK_API_KEY", "secret\r\nX-Evil: 1")
    with pytest.raises(InvalidConfig) as error:
        load_settings()
    assert "api_key" in str(error.value).lower()
    assert "secret" not in str(error.value)

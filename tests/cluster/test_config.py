"""The cluster's file: every fault at once, with place, value, bound and remedy."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cluster.config import (
    AcceleratorKeys,
    ActuatorKeys,
    ClusterConfig,
    ProxyKeys,
    ServerKeys,
    read_config,
)
from cluster.engines import ENGINES, filled
from cluster.errors import ConfigFaulty
from cluster.replicas import Group
from common.faults import MAX_FAULTS
from tests.cluster.fleet import OUT_TOKENS, system_json
from tests.service import ROOT

LEAST = "system: system.json\noptimizer: http://127.0.0.1:3302\nservers: {s: {}}\n"


def written(folder: Path, text: str) -> Path:
    (folder / "system.json").write_text(json.dumps(system_json()))
    path = folder / "cluster.yaml"
    path.write_text(text)
    return path


def faults(folder: Path, text: str) -> str:
    with pytest.raises(ConfigFaulty) as raised:
        read_config(written(folder, text))
    return str(raised.value)


def test_the_example_is_read_and_its_replicas_are_hearth_tiny() -> None:
    config, system = read_config(ROOT / "deploy" / "cluster.example.yaml")
    assert set(config.servers) == set(system.servers) == {"chat"}
    model = config.recipes(system).settings["chat"]["MODEL"]
    assert Path(model, "config.json").exists()


def test_the_file_for_kubernetes_is_read() -> None:
    config, system = read_config(ROOT / "deploy" / "kubernetes" / "controller" / "cluster.yaml")
    assert config.actuator.kind == "kubernetes"
    assert set(config.servers) == set(system.servers)


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    text = faults(
        tmp_path,
        "system: system.json\noptimizer: ftp://x\nperiod_s: -1\nlisten: here\n"
        "servers: {s: {modle: x}}\n"
        "actuator: {kind: nomad}\naccelerators: {}\nextra: 1\nperiod_s: .nan\n",
    )
    for told in (
        "optimizer: is no address; give one like http://",
        'listen: "here" is not HOST:PORT',
        "servers.s.modle: is not known (did you mean model?); correct it or leave it out",
        "actuator.kind: is \"nomad\"; give 'local', 'ray' or 'kubernetes'",
        "extra: is not known; leave it out; known keys: system,",
        "'period_s' appears twice; remove one",
        "period_s: is NaN",
    ):
        assert told in text


@pytest.mark.parametrize(
    ("servers", "num_faults"),
    [
        (f"s: {{{', '.join(f'k{number}: 1' for number in range(150))}}}", 150),
        (", ".join(f"t{number}: {{}}" for number in range(150)), 151),  # and s is missing
    ],
)
def test_of_many_faults_the_first_are_told_and_how_many_more_there_are(
    servers: str, num_faults: int, tmp_path: Path
) -> None:
    accelerators = "accelerators: {A: {}, B: {}}\n"
    text = faults(tmp_path, LEAST.replace("s: {}", servers) + accelerators)
    assert text.count("\n") == MAX_FAULTS
    assert text.endswith(f"  - And {num_faults - MAX_FAULTS} more faults.")


def test_names_are_those_of_the_system(tmp_path: Path) -> None:
    text = faults(tmp_path, LEAST.replace("s: {}", "t: {}") + "accelerators: {C: {}, A: {}}\n")
    assert '"t" is not a server of system.json; known: "s"' in text
    assert '"s" of system.json is missing' in text
    assert 'accelerators: "C" is not an accelerator of system.json' in text
    assert 'accelerators: "B" of system.json is missing' in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 5000,
        "a: &a [x]\nb: *a",
        "? [a]\n: 1",
        "a: !!python/object:os.system x",
        "period_s: " + "9" * 5000,
        "\x00",
        "a: {b: {c: ",
        "period_s: 1e999",
        "period_s: -1" + "0" * 400,
    ],
)
def test_what_is_no_such_file_is_refused_in_words(tmp_path: Path, text: str) -> None:
    assert faults(tmp_path, text)


def test_bytes_that_are_no_text_and_files_that_are_none_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    path.write_bytes(b"a: \xff")
    with pytest.raises(ConfigFaulty, match="not UTF-8 at byte 3"):
        read_config(path)
    with pytest.raises(ConfigFaulty, match="not a file"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"system": 3}',
        '{"system": {"serverData": []}}',
        '{"system": {"serverData": {"servers": [{}]}}}',
        '{"system": {}, "system": {}}',
        "[" * 100_000,
    ],
)
def test_a_system_that_is_none_is_refused_in_words(tmp_path: Path, content: str) -> None:
    path = written(tmp_path, LEAST + "accelerators: {}\n")
    (tmp_path / "system.json").write_text(content)
    with pytest.raises(ConfigFaulty, match="system"):
        read_config(path)


@pytest.mark.parametrize("address", ["::1:3300", "[::1]:3300"])
def test_an_ipv6_address_may_be_in_brackets_as_in_urls(tmp_path: Path, address: str) -> None:
    text = LEAST + f"accelerators: {{A: {{}}, B: {{}}}}\nlisten: '{address}'\n"
    config, _ = read_config(written(tmp_path, text))
    assert (config.host, config.port) == ("::1", 3300)


def test_settings_are_texts_whatever_yaml_reads(tmp_path: Path) -> None:
    text = LEAST.replace("s: {}", "s: {settings: {A: true, B: 3, C: 0.5}}")
    config, system = read_config(written(tmp_path, text + "accelerators: {A: {}, B: {}}\n"))
    assert config.recipes(system).settings["s"] == {"A": "true", "B": "3", "C": "0.5"}


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1, "9", [1], 10**400])
def test_a_load_that_no_plan_can_be_for_is_refused(tmp_path: Path, rate: Any) -> None:
    path = written(tmp_path, LEAST + BOTH)
    (tmp_path / "system.json").write_text(json.dumps(system_json(rate)))
    with pytest.raises(ConfigFaulty, match=r"arrivalRate of s is .*; give 0 to 1e"):
        read_config(path)


def test_a_replica_takes_a_cpu_where_the_file_names_nothing(tmp_path: Path) -> None:
    config, system = read_config(written(tmp_path, LEAST + BOTH))
    assert config.recipes(system).recipe(Group("s", "A", 1)).resources == {"CPU": 1}


BOTH = "accelerators: {A: {}, B: {}}\n"


def test_other_engines_have_their_own_command_lines_paths_and_metrics(tmp_path: Path) -> None:
    keys = (
        "s: {engine: vllm, model: org/m, command: 'vllm serve {model} --port {port} "
        "--max-num-seqs {rows} --overrides ''{\"a\": 1}'' --gpus {devices}', "
        "ready_path: /ping, metrics: {ended: my_requests_total}}"
    )
    text = LEAST.replace("s: {}", keys) + BOTH
    config, system = read_config(written(tmp_path, text))
    engine = config.recipes(system).recipe(Group("s", "A", 8)).engine
    assert filled(engine.command, port=81, devices="0,1") == (
        "vllm", "serve", "org/m", "--port", "81", "--max-num-seqs", "8", "--overrides",
        '{"a": 1}', "--gpus", "0,1",
    )  # fmt: skip
    assert (engine.ready_path, engine.drains_itself) == ("/ping", False)
    assert engine.metrics["ended"] == ("my_requests_total",)
    assert engine.metrics["running"] == ("vllm:num_requests_running",)
    assert config.engines(system)["s"].answer_tokens == OUT_TOKENS


def test_a_replica_costs_what_all_of_its_cards_do(tmp_path: Path) -> None:
    document = system_json()
    document["system"]["modelData"]["models"][1]["accCount"] = 2
    path = written(tmp_path, LEAST + BOTH)
    (tmp_path / "system.json").write_text(json.dumps(document))
    config, system = read_config(path)
    recipes = config.recipes(system)
    assert recipes.costs == {("s", "A"): 10, ("s", "B"): 80}


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "command"])
def test_every_known_engine_has_all_that_it_needs_but_a_model(tmp_path: Path, name: str) -> None:
    text = LEAST.replace("s: {}", f"s: {{engine: {name}, model: m}}") + BOTH
    config, system = read_config(written(tmp_path, text))
    recipe = config.recipes(system).recipe(Group("s", "A", 8))
    words = " ".join(filled(recipe.engine.command, host="h", port=1, devices=""))
    assert "{" not in words
    assert (recipe.engine.command == ()) == (name == "hearth")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("ready_path: /x", "servers.s.ready_path: is for other engines; remove it"),
        ("command: x", "servers.s.command: is for other engines"),
        ("engine: vllm", "servers.s.model: is missing; the command line of vllm needs it"),
        ("engine: command", "servers.s.command: is missing"),
        ("engine: command, command: x", "servers.s.metrics: has no prompt_tokens, completion_"),
        ("engine: vllm, command: 'x {prot}'", "has the place {prot}; known: host, port, model"),
        ('engine: vllm, command: "x \'y"', "No closing quotation"),
        ("engine: vllm, command: ' '", "has no words"),
        ("engine: vllm, model: m, ready_path: health", "servers.s.ready_path:"),
        ("engine: tgi", "servers.s.engine: is \"tgi\"; give 'hearth', 'vllm'"),
        ("engine: vllm, metrics: {speed: x}", "servers.s.metrics.speed"),
    ],
)
def test_what_an_engine_lacks_is_told(tmp_path: Path, keys: str, told: str) -> None:
    assert told in faults(tmp_path, LEAST.replace("s: {}", f"s: {{{keys}}}") + BOTH)


def test_an_engine_that_counts_no_requests_needs_the_length_of_answers(tmp_path: Path) -> None:
    path = written(tmp_path, LEAST.replace("s: {}", "s: {engine: llama-server, model: m}") + BOTH)
    document = system_json()
    document["system"]["serverData"]["servers"][0]["currentAlloc"]["load"] = {}
    (tmp_path / "system.json").write_text(json.dumps(document))
    with pytest.raises(ConfigFaulty, match="has avgOutTokens 0; give 1 or more"):
        read_config(path)


def test_servers_that_may_sleep_are_known_by_the_models_that_wake_them(tmp_path: Path) -> None:
    document = system_json(minNumReplicas=0)
    servers = document["system"]["serverData"]["servers"]
    servers += [{**servers[0], "name": "t"}, {**servers[0], "name": "u", "minNumReplicas": 1}]
    keys = "s: {idle_s: 60, models: [a, b]}, t: {}, u: {models: [c]}"
    path = written(tmp_path, LEAST.replace("s: {}", keys) + BOTH + "scale_down_s: 90\n")
    (tmp_path / "system.json").write_text(json.dumps(document))
    config, system = read_config(path)
    assert config.idle_s(system) == {"s": 60, "t": 90}
    assert config.models_of_sleepers(system) == {"s": ["a", "b"]}, "nobody could wake t"
    assert config.recipes(system).models == {"s": ("a", "b"), "u": ("c",)}
    path.write_text(
        path.read_text().replace(", models: [a, b]", "").replace("t: {}", "t: {idle_s: 0}")
    )
    with pytest.raises(ConfigFaulty, match=r"servers\.t\.idle_s: "):
        read_config(path)
    path.write_text(path.read_text().replace("idle_s: 0", "").replace("u: {", "u: {idle_s: 9, "))
    with pytest.raises(ConfigFaulty) as raised:
        read_config(path)
    assert "servers.s.models: is missing; name those in requests" in str(raised.value)
    assert "servers.u.idle_s: minNumReplicas in system.json is not 0" in str(raised.value)


def test_kubernetes_has_the_command_line_in_its_own_objects(tmp_path: Path) -> None:
    text = LEAST.replace("s: {}", "s: {engine: vllm}") + BOTH + "actuator: {kind: kubernetes}\n"
    config, system = read_config(written(tmp_path, text))
    assert set(config.engines(system)) == {"s"}


def test_every_key_is_documented_with_its_default() -> None:
    page = (ROOT / "docs" / "controller.md").read_text()
    section = page.partition("## The file")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-zA-Z_.]+)` \| ([^|]*) \|", section, re.MULTILINE))
    keys = set()
    for prefix, model in (
        ("", ClusterConfig), ("actuator.", ActuatorKeys), ("proxy.", ProxyKeys),
        ("servers.NAME.", ServerKeys), ("accelerators.NAME.", AcceleratorKeys),
    ):  # fmt: skip
        for name, field in model.model_fields.items():
            keys.add(prefix + name)
            assert field.is_required() == (rows[prefix + name].strip() == "required"), name
    assert keys == set(rows)

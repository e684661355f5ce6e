"""A faulty body, file or setting is refused in the words of `common.faults`."""

from collections.abc import Iterator
from inspect import isabstract
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import core_schema

import inference_api.inference_api_server  # noqa: F401  all its bodies
import optimizer.app  # noqa: F401
from benchmarking.load.user_prompts import Line
from benchmarking.rows.config import BenchmarkConfig
from benchmarking.rows.model_configs import Cells
from benchmarking.settings import Settings as BenchmarkSettings
from cluster.config import ClusterConfig
from common.faults import _FORMATS, message_of, setting_faults
from common.plain_yaml import Keys
from inference_api.settings import Settings
from inference_api.web.fields import Body
from optimizer.inferno_json import Body as OptimizerBody
from optimizer.settings import Settings as OptimizerSettings
from proxy.access.policy import Policy, TeamPolicy, TokenPrice
from proxy.settings import Settings as ProxySettings
from proxy.upstreams.routes import Routes
from proxy.upstreams.specs import UpstreamSpec
from weights.schema import Body as WeightsBody
from weights.schema import Page
from weights.settings import Settings as WeightsSettings

SETTINGS: list[type[BaseModel]] = [
    Settings, OptimizerSettings, WeightsSettings, ProxySettings, BenchmarkSettings,
]  # fmt: skip
PYDANTICS_OWN = set(get_args(core_schema.ErrorType)) - {
    "value_error", "extra_forbidden", "unexpected_keyword_argument",
}  # fmt: skip
JUNK: list[Any] = [
    None, True, 0, -1, 0.5, 10**30, -(10**30), float("inf"), float("nan"), "", "junk", "x" * 10**5,
    "\ud800", [], ["x"] * 300, [3, None], [[]], {}, {"junk": 1}, [{"type": "junk"}], {"type": 3},
]  # fmt: skip


def below(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in kind.__subclasses__():
        yield from (each, *below(each))


BODIES: list[Any] = [
    *dict.fromkeys(
        each
        for root in (Body, OptimizerBody, WeightsBody, Keys)
        for each in below(root)
        if not isabstract(each)
    ),
    *(ClusterConfig, Line, BenchmarkConfig, Cells, Page),
    *(Policy, TeamPolicy, TokenPrice, UpstreamSpec),
]


def faults_of(kind: Any, value: Any) -> list[Any]:
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        return [*error.errors()]
    return []


@pytest.mark.parametrize("kind", [*BODIES, Routes], ids=lambda kind: kind.__qualname__)
def test_every_fault_of_a_body_or_file_has_our_words(kind: Any) -> None:
    fields = {
        name: field.alias or name for name, field in getattr(kind, "model_fields", {}).items()
    }
    tried = [*JUNK, *({field: junk} for field in fields.values() for junk in JUNK)]
    if kind is Cells:  # all of a file's cells are texts
        tried = [{field: str(junk) for field in fields} for junk in JUNK]
    for detail in (each for value in tried for each in faults_of(kind, value)):
        assert detail["type"] not in PYDANTICS_OWN - _FORMATS.keys(), detail
        message = message_of(detail, kind)
        assert len(message) < 2000
        assert "Input should" not in message


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__module__)
def test_every_fault_of_a_setting_has_our_words(
    kind: type[BaseModel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # AUDIT_FILE is made where it is missing
    for name, field in kind.model_fields.items():
        variable = (field.alias or name).upper()
        for junk in ("junk", "-1", "1e999", "[", "[1]", "x" * 5000):
            monkeypatch.setenv(variable, junk)
            try:
                kind()
            except ValidationError as error:
                for detail in error.errors():
                    assert detail["type"] not in PYDANTICS_OWN - _FORMATS.keys(), detail
                said = setting_faults(error)
                assert all(each.endswith("unset it.") for each in said) or name == "bundle"
        monkeypatch.delenv(variable, raising=False)

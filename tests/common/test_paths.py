"""Settings of all services as people write them: paths in a home folder, empty variables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from pydantic import AliasChoices, BaseModel, TypeAdapter, ValidationError
from pydantic_settings import BaseSettings

from benchmarking.rows.config import BenchmarkConfig
from benchmarking.settings import Settings as BenchmarkSettings
from cluster.config import ActuatorKeys, ClusterConfig, ProxyKeys
from common.startup import read_settings
from inference_api.errors import StartupError
from inference_api.loading.checkpoint import locate
from inference_api.loading.drafting import find_heads
from inference_api.settings import Settings
from optimizer.settings import Settings as OptimizerSettings
from proxy.settings import Settings as ProxySettings
from weights.settings import Settings as WeightsSettings

SERVICES: tuple[type[BaseSettings], ...] = (
    *(Settings, ProxySettings, OptimizerSettings, WeightsSettings, BenchmarkSettings),
)
FILES: tuple[type[BaseModel], ...] = (BenchmarkConfig, ClusterConfig, ActuatorKeys, ProxyKeys)


def has_path(annotation: Any) -> bool:
    return annotation is Path or any(map(has_path, get_args(annotation)))


def path_settings() -> Iterator[tuple[str, TypeAdapter[Any]]]:
    for settings in (*SERVICES, *FILES):
        for name, field in settings.model_fields.items():
            if has_path(field.annotation):
                annotated: Any = Annotated[field.annotation, *field.metadata, None]
                yield f"{settings.__module__}.{name}", TypeAdapter(annotated)


def variables(settings: type[BaseSettings]) -> Iterator[str]:
    for name, field in settings.model_fields.items():
        alias = field.validation_alias or field.alias or name
        for each in alias.choices if isinstance(alias, AliasChoices) else [alias]:
            yield str(each).upper()


def test_a_tilde_is_the_home_folder_in_every_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").touch()
    found = dict(path_settings())
    assert len(found) > 15
    for name, adapter in found.items():
        assert adapter.validate_python("~/file") == tmp_path / "file", name
        for written, fault in (
            ("~/file\r", "has a line break or another control character; remove it"),
            ("~nobody.here/file", "begins with ~ and the name of no user here; write it out"),
            ("~/" + "a" * 4096, "has more than 4096 characters; shorten it"),
        ):
            with pytest.raises(ValidationError, match=fault):
                adapter.validate_python(written)


def test_a_tilde_of_nobody_in_a_models_name_is_refused_by_its_setting() -> None:
    for setting in ("MODEL", "DRAFT_MODEL"):
        with pytest.raises(StartupError, match=f"{setting}='~nobody.here/m': begins with ~ and"):
            locate("~nobody.here/m", setting)
    with pytest.raises(StartupError, match=r"MEDUSA_HEADS='~nobody.here/m': begins with ~ and"):
        find_heads(Path(), "~nobody.here/m")


@pytest.mark.parametrize("settings", [ProxySettings, OptimizerSettings, WeightsSettings])
@pytest.mark.parametrize(
    "url", ["127.0.0.1:6379", "http://h", "redis://:secret@h:port", "redis://h:0"]
)
def test_what_is_no_redis_is_refused_without_the_password(
    settings: type[BaseSettings], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", url)
    with pytest.raises(StartupError) as caught:
        read_settings(settings, StartupError)
    fault = "REDIS_URL=***: is no address of a Redis server; give one like redis://127.0.0.1:6379/0"
    assert caught.value.faults == (f"{fault}; correct it or unset it.",)


@pytest.mark.parametrize("settings", SERVICES)
def test_an_empty_variable_counts_as_unset(
    settings: type[BaseSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_default = settings()
    for variable in variables(settings):
        monkeypatch.setenv(variable, "")
    assert settings() == by_default


@pytest.mark.parametrize("settings", SERVICES)
def test_bytes_that_are_no_text_are_refused(
    settings: type[BaseSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in variables(settings):
        with monkeypatch.context() as patched:
            patched.setenv(variable, "http://\udcff")
            with pytest.raises(StartupError):
                read_settings(settings, StartupError)

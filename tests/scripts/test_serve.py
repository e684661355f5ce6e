"""What `serve` does before it starts anything; tests/e2e/test_make_serve.py runs it whole."""

from pathlib import Path

import pytest

from inference_api.errors import StartupError
from scripts.serve import kept_secret


def test_a_directory_that_cannot_keep_the_secret_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("var").write_text("not a folder")
    with pytest.raises(StartupError) as caught:
        kept_secret()
    assert f"var/jwt_secret cannot be kept in {tmp_path} (File exists)" in str(caught.value)
    assert "set JWT_SECRET" in str(caught.value)

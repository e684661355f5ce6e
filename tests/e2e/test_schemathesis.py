"""schemathesis against a real server: whatever fits or breaks the description of any route is
answered with a status and a body that the description has, and never with a failure of ours.

Every bound of every field, and more examples, by command: `make fuzz`,
SCHEMATHESIS_EXAMPLES=500 make fuzz
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from lab.kit.servers import MOCK_APP, ROOT, TIMEOUT_S, ServedApi
from tests.forked import served

CONFIG = ROOT / "tests" / "e2e" / "schemathesis.toml"
SYSTEM = ROOT / "tests" / "data" / "optimizer" / "systems" / "s00_documented.json"
EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "0"))  # of each operation; 0: a few
PHASES = "coverage,fuzzing" if EXAMPLES else "fuzzing"
A_FEW = 1
EXCLUDED_CHECKS = (
    # Reading is lenient on purpose (null for absent, numbers as text), and more is checked than a
    # JSON schema can say (that a prompt fits the context).
    "negative_data_rejection",
    "positive_data_acceptance",
    # A session's id may hold slashes, so /weights/sessions/<id>/partition is an <id> to GET too.
    "allow_header_conformance",
)


@pytest.mark.timeout(max(1800, 20 * EXAMPLES))
def test_every_answer_is_described(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "MAX_SEQ_LEN": 64,
        "MOCK_TOKENS_PER_SECOND": 1e6,
        "OPTIMIZER_STATEFUL": "true",
        "OPTIMIZER_STORE_PATH": tmp_path / "optimizer.db",
        "OPTIMIZER_MILP_TIME_LIMIT_S": 1,
        "WEIGHTS_DB": tmp_path / "weights.db",
    }
    with served(tmp_path / "log", MOCK_APP, **settings) as api:
        put_something_in_place(api)
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"]
        options = ["--phases", PHASES, "--max-examples", str(EXAMPLES or A_FEW)]
        options += ["--exclude-checks", ",".join(EXCLUDED_CHECKS)]
        run = subprocess.run(
            [*command, f"{api.url}/openapi.json", *options],
            cwd=tmp_path,  # it keeps a cache there
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
        paths = requests.get(f"{api.url}/openapi.json", timeout=TIMEOUT_S).json()["paths"]
        num_operations = sum(len(verbs) for verbs in paths.values())
        # All but /openapi.json itself.
        assert f"Tested: {num_operations - 1}" in run.stdout
        assert api.state()["status"] == "ready"
        assert "Traceback" not in api.log


def put_something_in_place(api: ServedApi) -> None:
    """The names that the configuration has: else most answers would be 404."""
    system = json.loads(SYSTEM.read_text())["input"]
    assert requests.put(f"{api.url}/state", json=system, timeout=TIMEOUT_S).status_code == 200
    told = {"number_of_nodes": 2, "max_weightings": [1.0, 1.0], "performance_metric": 1.0}
    for session_id in ("first", "second"):
        response = api.post("/weights_update", session_id=session_id, weights=[0.5, 0.5], **told)
        assert response.status_code == 200, response.text

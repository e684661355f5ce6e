"""The API starts without scipy, and what needs it says what to install."""

import json
import subprocess
import sys
from pathlib import Path

from lab.kit.servers import TIMEOUT_S
from tests.optimizer.support import server, system_data
from tests.weights.support import search

ASK = """
import json, os, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"scipy", "sklearn"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
os.environ.update(MOCK_MODEL="1", WEIGHTS_DB="weights.db")
from inference_api.inference_api_server import create_server

client = create_server().test_client()
asked = {path: client.post(path, json=body) for path, body in json.load(sys.stdin).items()}
asked["/getServers"] = client.get("/getServers")
print(json.dumps({path: [each.status_code, each.get_json()] for path, each in asked.items()}))
"""


def test_without_scipy_the_api_serves_and_names_the_install(tmp_path: Path) -> None:
    bodies = {
        "/optimizeOne": system_data([server()]),
        "/weights_gen": search(3, seed=1) | {"min_weightings": [0.1] * 3},
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps(bodies),
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout)
    assert answers.pop("/getServers")[0] == 200
    for status, body in answers.values():
        assert status == 501
        assert "pip install 'hearth[optimizer]'" in body["message"]

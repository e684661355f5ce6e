"""Two teams and one session id over HTTP: each answer is its own prompt's, from its first byte."""

import requests

from lab.kit.servers import TIMEOUT_S, ServedApi

REUSES = 24
SESSION_ID = "the-same"


def test_answer_never_begins_with_what_another_team_was_being_told(slow_api: ServedApi) -> None:
    """Alpha hangs up in the middle of its answer, and beta asks at once under the same id. A step
    takes 50 ms, so that alpha's row is still in one."""
    answers = []
    for _ in range(REUSES):
        left = _ask(slow_api, "alpha", "a" * 500)
        next(left.iter_content(1))
        left.close()
        with _ask(slow_api, "beta", "b") as response:
            answers.append(response.text)
    assert answers == ["b"] * REUSES


def _ask(api: ServedApi, team: str, text: str) -> requests.Response:
    body = {"text": text, "session_id": SESSION_ID, "max_tokens": 400}
    headers = {"X-Team-Id": team}
    return requests.post(
        f"{api.url}/inference", json=body, headers=headers, timeout=TIMEOUT_S, stream=True
    )

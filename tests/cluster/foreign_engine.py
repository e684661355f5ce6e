"""An engine that is not Hearth's, as a process: it says what it is told, a character at a time.

`python -m tests.cluster.foreign_engine vllm --port 8000 --rows 4` answers POST /inference, and GET
/health, /v1/models and /metrics with the names of vLLM or SGLang. SIGTERM ends it at once, whatever
it is saying.
"""

import argparse
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Lock

TOKEN_S = 0.02
PAGES = {
    "vllm": """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="capacity"}} {waiting}.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {prompt}.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {completion}.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {ended}.0
vllm:request_success_total{{engine="0",finished_reason="abort",model_name="m"}} 0.0
# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{{engine="0",le="+Inf",model_name="m"}} {ended}.0
vllm:request_prompt_tokens_count{{engine="0",model_name="m"}} {ended}.0
vllm:request_prompt_tokens_sum{{engine="0",model_name="m"}} {prompt}.0
# TYPE vllm:request_generation_tokens histogram
vllm:request_generation_tokens_bucket{{engine="0",le="+Inf",model_name="m"}} {ended}.0
vllm:request_generation_tokens_count{{engine="0",model_name="m"}} {ended}.0
vllm:request_generation_tokens_sum{{engine="0",model_name="m"}} {completion}.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} {ended}.0
vllm:time_to_first_token_seconds_count{{engine="0",model_name="m"}} {ended}.0
vllm:time_to_first_token_seconds_sum{{engine="0",model_name="m"}} {ttft_s}
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} {gaps}.0
vllm:inter_token_latency_seconds_count{{engine="0",model_name="m"}} {gaps}.0
vllm:inter_token_latency_seconds_sum{{engine="0",model_name="m"}} {itl_s}
""",
    "sglang": """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{model_name="m"}} {running}.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{{model_name="m"}} {waiting}.0
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{{model_name="m"}} {ended}.0
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{{model_name="m"}} {prompt}.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{{model_name="m"}} {completion}.0
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_sum{{model_name="m"}} {ttft_s}
sglang:time_to_first_token_seconds_bucket{{le="+Inf",model_name="m"}} {ended}.0
sglang:time_to_first_token_seconds_count{{model_name="m"}} {ended}.0
# TYPE sglang:inter_token_latency_seconds histogram
sglang:inter_token_latency_seconds_sum{{model_name="m"}} {itl_s}
sglang:inter_token_latency_seconds_bucket{{le="+Inf",model_name="m"}} {gaps}.0
sglang:inter_token_latency_seconds_count{{model_name="m"}} {gaps}.0
""",
}


def command_of(name: str) -> str:
    """The command line of this engine, with places."""
    words = f"{sys.executable} -m tests.cluster.foreign_engine {name}"
    return f"{words} --host {{host}} --port {{port}} --rows {{rows}}"


class Engine:
    """What it has counted. Any thread."""

    def __init__(self, name: str, rows: int) -> None:
        self.name, self.rows = name, BoundedSemaphore(rows)
        self._lock = Lock()
        self._counts = dict.fromkeys(("running", "waiting", "ended", "prompt", "completion"), 0)

    def count(self, **changes: int) -> None:
        with self._lock:
            for name, change in changes.items():
                self._counts[name] += change

    def page(self) -> str:
        with self._lock:
            now = dict(self._counts)
        gaps = max(now["completion"] - now["ended"], 0)
        ttft_s, itl_s = now["ended"] * TOKEN_S, gaps * TOKEN_S
        return PAGES[self.name].format(**now, gaps=gaps, ttft_s=ttft_s, itl_s=itl_s)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def do_GET(self) -> None:
        pages = {
            "/health": "",
            "/metrics": self.engine.page(),
            "/v1/models": json.dumps({"data": [{"id": "m"}]}),
        }
        body = pages.get(self.path, "no such page").encode()
        self.send_response(200 if self.path in pages else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
        self.engine.count(waiting=1)
        with self.engine.rows:
            self.engine.count(waiting=-1, running=1)
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for character in text:
                time.sleep(TOKEN_S)
                self.wfile.write(b"1\r\n" + character.encode() + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
            self.engine.count(running=-1, ended=1, prompt=len(text), completion=len(text))

    def log_message(self, *arguments: object) -> None:
        """It keeps no log."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PAGES)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    arguments = parser.parse_args()
    Handler.engine = Engine(arguments.name, arguments.rows)
    ThreadingHTTPServer((arguments.host, arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()

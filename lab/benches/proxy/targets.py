"""Starts the processes that `bench-proxy` compares: upstream, proxy, nginx, Envoy, LiteLLM."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import jwt
import psutil

from common.fetch import PROBE, FetchFailed, fetch
from lab.benches.proxy.load import MODEL
from lab.kit.servers import ROOT, free_port
from lab.peers.install import ENVOY, LITELLM, NotInstalled, install

START_TIMEOUT_S = 120.0
NUM_PROCESSES = 2  # processes or threads of each other gateway, as of the larger proxy

NGINX_CONFIG = """
daemon off; worker_processes {num_processes}; worker_rlimit_nofile {num_files};
pid {directory}/nginx.pid; error_log {directory}/error.log;
events {{ worker_connections {num_files}; }}
http {{
  access_log off; client_body_temp_path {directory}/a; proxy_temp_path {directory}/b;
  fastcgi_temp_path {directory}/c; uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;
  keepalive_requests 1000000000;
  upstream api {{
    server 127.0.0.1:{upstream_port}; keepalive 1024; keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://api; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""

ENVOY_CONFIG = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    enable_reuse_port: true
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/{extensions}.network.http_connection_manager.v3.{manager}
          stat_prefix: bench
          stream_idle_timeout: 0s
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{prefix: "/"}}
                route: {{cluster: api, timeout: 0s}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/{extensions}.http.router.v3.Router
  clusters:
  - name: api
    type: STATIC
    circuit_breakers:
      thresholds:
      - {{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}}
    load_assignment:
      cluster_name: api
      endpoints:
      - lb_endpoints:
        - endpoint:
            address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream_port}}}}}
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A server on a port. `pid` is the root of its process tree; None for the upstream itself. It
    requires `token`; empty means none."""

    name: str
    port: int
    pid: int | None = None
    token: str = ""

    @property
    def is_ours(self) -> bool:
        return self.name.startswith("proxy")

    @property
    def relays_lists(self) -> bool:
        """Whether it relays the upstream's list of models."""
        return self.name != "litellm"

    def memory_bytes(self) -> int:
        """Returns the proportional set size, in which shared pages of processes count once."""
        return sum(process.memory_full_info().pss for process in self._tree())

    def cpu_s(self) -> float:
        """Returns the processor time so far."""
        times = (process.cpu_times() for process in self._tree())
        return sum(each.user + each.system for each in times)

    def _tree(self) -> list[psutil.Process]:
        if self.pid is None:
            return []
        parent = psutil.Process(self.pid)
        return [parent, *parent.children(recursive=True)]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class NotListening(Exception):
    """A process did not start to listen."""


@contextmanager
def serving(command: list[str], port: int, env: dict[str, str]) -> Iterator[int]:
    """Runs a process that listens on `port` until the block ends. Yields its pid. Raises
    NotListening."""
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    try:
        while not listens(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise NotListening(f"{command[0]} did not come up: status {process.poll()}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_TIMEOUT_S)


class Targets:
    """Starts the processes to compare. They end with the stack."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory
        self._env = {"PATH": os.defpath, "HOME": str(directory)}
        self._secret = secrets.token_hex(32)
        self._upstream_port = free_port()
        command = [sys.executable, "-m", "lab.benches.proxy.bench"]
        command += ["--upstream", str(self._upstream_port)]
        stack.enter_context(serving(command, self._upstream_port, self._env))
        self.direct = Target("direct", self._upstream_port)

    def others(self, names: Iterable[str]) -> list[Target]:
        """Returns the gateways that are installed and start. Prints why others are left out."""
        starts: dict[str, Callable[[], Target]] = {
            "nginx": self._nginx,
            "envoy": self._envoy,
            "litellm": self._litellm,
        }
        started = []
        for name in names:
            try:
                started.append(starts[name]())
            except (NotInstalled, NotListening) as error:
                print(f"{name} is left out: {error}")
        return started

    def proxy(self, num_processes: int) -> Target:
        port = free_port()
        env = self._env | {
            "JWT_SECRET": self._secret,
            "PROXY_PORT": str(port),
            "PROXY_METRICS_PORT": "0",
            "PROXY_PROCESSES": str(num_processes),
            "UPSTREAM_CONNECTIONS": "1000000",
            "UPSTREAM": f"http://127.0.0.1:{self._upstream_port}",
            "AUDIT_FILE": str(self._directory / "audit.jsonl"),
            "LOG_LEVEL": "ERROR",
            "DRAIN_TIMEOUT": "1",
        }
        command = [sys.executable, "-m", "gunicorn", "--config", "proxy/gunicorn.conf.py"]
        name = "proxy" if num_processes == 1 else f"proxy x{num_processes}"
        claims = {"team_id": "bench", "token_id": "bench"}
        token = jwt.encode(claims, self._secret)
        return self._start(name, command, port, env, token)

    def _nginx(self) -> Target:
        program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")
        if program is None:
            raise NotInstalled("it is not installed (Debian: apt-get install nginx)")
        port, config = free_port(), self._directory / "nginx.conf"
        num_files = psutil.Process().rlimit(psutil.RLIMIT_NOFILE)[1]
        config.write_text(
            NGINX_CONFIG.format(
                directory=self._directory,
                upstream_port=self._upstream_port,
                port=port,
                num_files=min(num_files, 100_000),
                num_processes=NUM_PROCESSES,
            )
        )
        return self._start("nginx", [program, "-c", str(config)], port, self._env)

    def _envoy(self) -> Target:
        version = install(ENVOY)
        port, config = free_port(), self._directory / "envoy.yaml"
        config.write_text(
            ENVOY_CONFIG.format(
                port=port,
                upstream_port=self._upstream_port,
                extensions="envoy.extensions.filters",
                manager="HttpConnectionManager",
            )
        )
        program = str(ENVOY.python.with_name("envoy"))
        command = [program, "-c", str(config), "--concurrency", str(NUM_PROCESSES)]
        command += ["--log-level", "off", "--disable-hot-restart"]
        print(version)
        return self._start("envoy", command, port, self._env)

    def _litellm(self) -> Target:
        version = install(LITELLM)
        port, config = free_port(), self._directory / "litellm.yaml"
        token = f"sk-{secrets.token_hex(16)}"
        base = f"http://127.0.0.1:{self._upstream_port}/v1"
        params = {"model": f"openai/{MODEL}", "api_base": base, "api_key": "none"}
        models = [{"model_name": MODEL, "litellm_params": params}]
        settings = {"model_list": models, "general_settings": {"master_key": token}}
        config.write_text(json.dumps(settings))  # JSON is valid YAML
        program = str(LITELLM.python.with_name("litellm"))
        command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        # gunicorn, because uvicorn ends a worker whose imports take more than 5 s.
        command += ["--num_workers", str(NUM_PROCESSES), "--run_gunicorn"]
        print(version)
        # Uses the list of prices in the package instead of one from the network.
        env = self._env | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
        return self._start("litellm", command, port, env, token)

    def _start(
        self, name: str, command: list[str], port: int, env: dict[str, str], token: str = ""
    ) -> Target:
        """Starts a target. Returns once it answers. Raises NotListening."""
        target = Target(name, port, self._stack.enter_context(serving(command, port, env)), token)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        headers = {"Authorization": f"Bearer {token}"}
        while True:
            try:
                fetch(f"http://127.0.0.1:{port}/v1/models", PROBE, headers)
                return target
            except FetchFailed as error:
                if time.monotonic() > deadline_s:
                    raise NotListening(f"{command[0]} does not answer: {error}") from None
                time.sleep(0.1)

"""Without its KVOffloadNode an agent says whether the object is missing or the way to it."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent.agent import Agent, eventually

EMPTY = {"metadata": {"resourceVersion": "1"}, "items": []}
WARNING = "the API server cannot be used, the last good configuration stays in force"


class ApiServer(ThreadingHTTPServer):
    """Answers lists with ``status``, watches with ``watch_status``; an open watch is silent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.watch_status = 200
        self.requests = 0
        self.ended = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:
        watch = "watch=true" in self.path
        status = self.server.watch_status if watch else self.server.status
        self.server.requests += 1
        self.send_response(status)
        self.end_headers()
        if status == 200 and watch:
            self.wfile.flush()
            self.server.ended.wait(60)
            return
        refusal = {"kind": "Status", "message": f"refused with {status}"}
        self.wfile.write(json.dumps(EMPTY if status == 200 else refusal).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing: the agent's log is what is looked at."""


class ClusterAgent(Agent):
    """An agent of a cluster whose API server is at ``url``."""

    def __init__(self, folder: Path, *, url: str) -> None:
        super().__init__(folder, arguments=["--host-memory", "8Mi"])
        self._kubeconfig = folder / "kubeconfig"
        document = {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": url}}],
            "users": [{"name": "x", "user": {"token": "t"}}],
        }
        self._kubeconfig.write_text(json.dumps(document))

    def source(self) -> list[str]:
        return [
            "--kubeconfig", str(self._kubeconfig), "--node-name", "vm",
            "--state-dir", str(self.folder / "state"),
        ]  # fmt: skip

    def events(self, event: str) -> list[dict[str, Any]]:
        """What it logged under a name."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def not_ready(self) -> str:
        """The text of ``/readyz``, which must be 503."""
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://{self.http}/readyz", timeout=10)
        with refused.value as answer:
            assert answer.code == 503
            return answer.read().decode()

    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.state()["configuration"]
        return found


@pytest.fixture
def place() -> Iterator[Path]:
    # Unix socket paths hold at most 107 bytes; pytest's own directories can be longer.
    with tempfile.TemporaryDirectory(prefix="kvo") as directory:
        yield Path(directory)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


def url_of(server: ApiServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize(
    ("status", "word"), [(401, "credentials"), (403, "rbac"), (404, "crds/generated")]
)
def test_a_refusal_is_told_once_with_server_error_and_hint_until_it_ends(
    place: Path, api: ApiServer, status: int, word: str
) -> None:
    api.status = status
    with ClusterAgent(place, url=url_of(api)) as agent:
        eventually(lambda: api.requests >= 3, what="a third try")
        (warning,) = agent.events(WARNING)
        assert (warning["server"], warning["status"]) == (url_of(api), status)
        assert warning["error"] == f"refused with {status}"
        assert word in warning["hint"]
        for told in (agent.not_ready(), agent.config()["problem"]):
            assert f"{url_of(api)}: refused with {status}" in told
            assert word in told
        assert agent.config()["connected"] is False

        api.status = 200
        eventually(lambda: agent.config()["connected"], what="the end of the outage")
        assert len(agent.events("the API server answers again")) == 1
        assert agent.config()["problem"] == ""
        assert agent.not_ready().startswith("KVOffloadNode/vm does not exist: is the operator")


def test_a_list_that_works_ends_no_outage_while_watching_is_forbidden(
    place: Path, api: ApiServer
) -> None:
    api.watch_status = 403
    with ClusterAgent(place, url=url_of(api)) as agent:
        eventually(lambda: api.requests >= 6, what="a third list and watch")
        assert len(agent.events(WARNING)) == 1
        assert agent.events("the API server answers again") == []
        assert "refused with 403" in agent.not_ready()


def test_a_closed_port_is_told_apart_from_a_missing_object(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with ClusterAgent(place, url=url) as agent:
        eventually(lambda: agent.events(WARNING), what="the warning")
        (warning,) = agent.events(WARNING)
        assert (warning["server"], warning["status"]) == (url, 0)
        assert "address" in warning["hint"]
        told = agent.not_ready()
    assert told.startswith(f"KVOffloadNode/vm: {url}: no answer")
    assert "does not exist" not in told

"""What the operator does at the start when the cluster is away, refuses it, or lacks the CRDs."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.unit.operator.apiserver import server

from kvoffload_operator.crds import wait_for_crds
from kvoffload_operator.kube.access import Access, TokenSource
from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import AccessError

PROGRAM = Path(sys.executable).with_name("kvoffload-operator")
GROUP = "/apis/kvoffload.io/v1alpha1"
KINDS = ("kvoffloadpolicies", "clusterkvoffloadpolicies", "kvoffloadnodes")
LEASE = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/kvoffload-operator"
SERVED = {"resources": [{"name": kind} for kind in KINDS]}
NOT_FOUND = (404, {"message": "404 page not found"})
GROUPS = (200, {"kind": "APIGroupList", "groups": []})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def look(url: str, *, until: int = 1, tell_again_s: float = 60.0) -> list[dict[str, Any]]:
    """Wait for the CRDs until there are so many records or none is missing; give the records."""
    access = Access(server=url, tls=None, token=TokenSource(str))
    with capture_logs() as records:
        async with KubeClient(access, user_agent="test") as client, asyncio.timeout(20):
            task = asyncio.create_task(
                wait_for_crds(
                    client, server=url, reads=[LEASE], poll_s=0.01, tell_again_s=tell_again_s
                )
            )
            while len(records) < until and not task.done():  # noqa: ASYNC110 - it is structlog's list
                await asyncio.sleep(0.01)
            if task.done():
                await task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return [dict(record) for record in records if record["log_level"] != "debug"]


async def test_only_a_real_404_of_the_crds_gets_the_hint_to_install_them() -> None:
    with server(lambda path: GROUPS if path == "/apis" else NOT_FOUND) as url:
        [told] = await look(url)

    assert told["event"] == "waiting_for_crds"
    assert told["err"] == "not served: kvoffload.io/v1alpha1"
    assert told["hint"] == "kubectl apply --server-side -f crds/generated/"


async def test_a_kind_that_is_missing_is_named() -> None:
    served = {"resources": [{"name": kind} for kind in KINDS[:2]]}
    with server(lambda _path: (200, served)) as url:
        [told] = await look(url)

    assert (told["event"], told["err"]) == ("waiting_for_crds", "not served: kvoffloadnodes")


async def test_a_server_that_is_away_is_named_without_a_word_about_crds() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    [told] = await look(url)

    assert (told["event"], told["server"]) == ("waiting_for_server", url)
    assert told["log_level"] == "warning"
    assert "crds" not in told["hint"]
    assert told["retry_s"] > 0


@pytest.mark.parametrize(
    "answer",
    [(404, "nginx"), (400, {"message": "HTTP to an HTTPS server"}), (200, {}), (200, []), (503, 1)],
)
async def test_what_is_no_api_server_is_not_taken_for_one_without_crds(
    answer: tuple[int, Any],
) -> None:
    with server(lambda _path: answer) as url:
        [told] = await look(url)

    assert told["event"] == "waiting_for_server"


async def test_the_same_trouble_is_told_again_after_a_while_only() -> None:
    url = f"http://127.0.0.1:{free_port()}"

    assert len(await look(url, until=2, tell_again_s=0.05)) == 2


async def test_a_server_that_comes_back_with_everything_ends_the_wait() -> None:
    seen: list[str] = []

    def answer(path: str) -> tuple[int, Any]:
        seen.append(path)
        if path != GROUP:
            return 200, {"items": []}
        return (503, {"message": "starting"}) if len(seen) == 1 else (200, SERVED)

    with server(answer) as url:
        records = await look(url, until=2)

    assert [record["event"] for record in records] == ["waiting_for_server"]
    assert seen[-1] == LEASE


@pytest.mark.parametrize("refused", ["/api/v1/pods", f"{GROUP}/kvoffloadpolicies", LEASE])
async def test_a_right_that_every_start_needs_is_asked_for_at_the_start(refused: str) -> None:
    def answer(path: str) -> tuple[int, Any]:
        if path == refused:
            return 403, {"message": f'User "bob" cannot list {path}', "reason": "Forbidden"}
        return 200, SERVED if path == GROUP else {"items": []}

    with server(answer) as url, pytest.raises(AccessError, match='User "bob" cannot list'):
        await look(url)


@pytest.mark.parametrize(
    ("status", "message", "hint"),
    [
        (401, "Unauthorized", "give valid credentials"),
        (403, 'User "system:anonymous" cannot get path "/apis"', "charts/kvoffload/files/rbac"),
    ],
)
def test_refused_at_the_start_it_ends_with_3_and_one_line(
    tmp_path: Path, status: int, message: str, hint: str
) -> None:
    with server(lambda _path: (status, {"message": message})) as url:
        config = tmp_path / "config"
        config.write_text(
            f"""
current-context: c
contexts: [{{name: c, context: {{cluster: k, user: ann}}}}]
clusters: [{{name: k, cluster: {{server: "{url}"}}}}]
users: [{{name: ann, user: {{token: bad}}}}]
"""
        )
        arguments = ["run", "--kubeconfig", str(config), "--host", "127.0.0.1", "--port", "0"]
        done = subprocess.run(
            [str(PROGRAM), *arguments], capture_output=True, text=True, timeout=60, check=False
        )

    assert (done.returncode, done.stderr) == (3, "")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    [told] = [record for record in records if record["level"] in {"warning", "error"}]
    assert (told["event"], told["status"], told["server"]) == ("no_access", status, url)
    assert told["user"] == "user 'ann' of context 'c'"
    assert message in told["err"]
    assert hint in told["hint"]

"""How the agent starts, stops and explains itself to people."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent import PROGRAM, Agent, eventually
from tests.integration.agent.wire import Peer, hashes
from tests.unit.memory.trees import GIB, MIB, V2_MOUNT, make_root, v2_group

from kvoffload_api.wire.messages import CapsChanged, Match, MatchReply, NewRequest
from kvoffload_api.wire.params import pack_params

POLICY = """
apiVersion: kvoffload.io/v1alpha1
kind: KVOffloadPolicy
metadata: {name: chat, namespace: team-a}
spec: {load: {maxTokens: %d}}
"""


def agent_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def own_agent(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Agent]:
    made = Agent(folder, arguments=["--host-memory", "16Mi"])
    with made:
        yield made


def test_sigterm_ends_it_with_0_and_removes_the_socket(own_agent: Agent) -> None:
    assert own_agent.socket.stat().st_mode & 0o777 == 0o666
    peer = Peer(own_agent.socket)
    peer.open()
    assert own_agent.process.stop() == 0
    assert not own_agent.socket.exists()
    assert peer.closed_by_agent()
    peer.close()
    assert "Traceback" not in own_agent.log()


def test_a_killed_agents_socket_is_replaced(own_agent: Agent) -> None:
    own_agent.process.kill()
    assert own_agent.socket.exists()
    own_agent.start()
    peer = Peer(own_agent.socket)
    peer.open()
    peer.close()


def test_a_second_agent_leaves_the_first_alone(own_agent: Agent) -> None:
    second = agent_cli(
        "run", "--policies", str(own_agent.policies), "--socket", str(own_agent.socket),
        "--http", "",
    )  # fmt: skip
    assert second.returncode == 69
    assert "another agent serves" in second.stderr
    assert "Traceback" not in second.stderr
    peer = Peer(own_agent.socket)
    peer.open()
    peer.close()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("precious")
    result = agent_cli("run", "--policies", str(tmp_path), "--socket", str(path), "--http", "")
    assert result.returncode == 69
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "--policies", "/nowhere"],
        ["run", "--policies", ".", "--in-cluster"],
        ["run", "--kubeconfig", "/nowhere"],
        ["run", "--in-cluster"],
        ["run", "--policies", ".", "--host-memory", "1e3"],
        ["run", "--policies", ".", "--uid-namespace", "x"],
        ["run", "--policies", ".", "--memory-limit", "-5"],
        ["doctor", "--bytes", "30GB"],
    ],
)
def test_wrong_usage_says_what_is_right_and_ends_with_2(arguments: list[str]) -> None:
    result = agent_cli(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "Usage" in result.stderr


def test_doctor_prints_chain_numbers_and_verdict(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        cgroup="0::/pod/container\n",
        mountinfo=V2_MOUNT.format(root="/"),
        files={
            **v2_group("pod/container", limit="max", usage=100 * MIB),
            **v2_group("pod", limit=str(2 * GIB), usage=200 * MIB, inactive_file=50 * MIB),
        },
    )
    result = agent_cli("doctor", "--root", str(root), "--bytes", "1Gi", "-o", "json")
    assert result.returncode == 0
    found = json.loads(result.stdout)
    assert found["verdict"]["answer"] == "Admit"
    assert found["headroom"]["bytes"] == 2 * GIB - 150 * MIB - 64 * MIB
    assert found["levels"][0]["path"] == "/pod"
    refused = agent_cli("doctor", "--root", str(root), "--memory-limit", "150Mi")
    assert refused.returncode == 1
    assert "explicit limit" in refused.stdout
    assert "Refuse" in refused.stdout


def test_a_policy_change_reaches_a_connected_engine_and_invalid_fields_are_counted(
    own_agent: Agent,
) -> None:
    peer = Peer(own_agent.socket)
    peer.open()
    worker = Peer(own_agent.socket)
    worker.join()

    def ready() -> bool:
        worker.map_some()
        return bool(own_agent.sessions()[0]["ready"])

    eventually(ready, what="mapped memory")
    own_agent.write("chat.yaml", POLICY % 64)
    while (told := peer.expect(CapsChanged)).max_load_tokens != 64:
        pass
    assert told.policy == "KVOffloadPolicy/team-a/chat"
    for handle, value in enumerate(["8", -1, True, 8.5, [5], {"a": 1}]):
        peer.send(
            NewRequest(
                handle=handle,
                request_id="r",
                num_tokens=160,
                num_prompt_tokens=160,
                hashes=hashes(10),
                params=pack_params({"max_load_tokens": value}),
            )
        )
        peer.send(Match(seq=handle, handle=handle, computed=0))
        assert peer.expect(MatchReply).tokens == 0
    (session,) = own_agent.sessions()
    assert session["invalid"] == {"max_load_tokens": 6}
    metrics = _get(own_agent, "/metrics")
    assert (
        'kvoffload_request_invalid_total{field="max_load_tokens",namespace="team-a"} 6.0' in metrics
    )
    assert _get(own_agent, "/healthz") == "ok\n"
    assert _get(own_agent, "/readyz") == "ok\n"
    peer.close()
    worker.close()


def test_silence_instead_of_hello_is_ended(own_agent: Agent) -> None:
    peer = Peer(own_agent.socket)
    peer.sock.settimeout(15)
    assert peer.closed_by_agent()
    peer.close()


def _get(agent: Agent, path: str) -> str:
    host, port = agent.http.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
        data = b""
        while part := sock.recv(65536):
            data += part
    return data.decode().split("\r\n\r\n", 1)[1]

"""Act one: no Kubernetes. One agent reads policies from files, two engines share it."""

from __future__ import annotations

import textwrap
from pathlib import Path

from rich.console import Console
from tests.demo.engines import EngineRun, RunningEngine, follow, start_engine
from tests.demo.table import Figures, total
from tests.demo.verdict import Check, checks_of_bytes
from tests.harness.installation import START_SECONDS, program, wait_listening
from tests.harness.processes import Process, all_stopped

ENGINES = 2
# What issue and README promise: a gigabyte really moved and was checked.
AT_LEAST_BYTES = 10**9
DEADLINE_SECONDS = 300.0
# A thirty-second of the trace's lengths and 256 KiB a block of 16 tokens: of the first requests
# about a sixth of all tokens come back after they left the small device cache. Three processes
# share what may be two busy cores, so an engine waits far longer for an answer than the default
# 5 ms: every answer that comes late is a load that is not counted.
SIZES = (
    "--scale", "32", "--layer-kib", "64", "--blocks", "320", "--concurrency", "6",
    "--hook-deadline-ms", "500",
)  # fmt: skip


POLICIES = {
    "cluster-default.yaml": """\
        apiVersion: kvoffload.io/v1alpha1
        kind: ClusterKVOffloadPolicy
        metadata: {name: default}
        spec:
          defaults: {load: {maxTokens: 8192}}
          nodeBudget: {hostMemory: 4Gi}
        """,
    "team-a.yaml": """\
        apiVersion: kvoffload.io/v1alpha1
        kind: KVOffloadPolicy
        metadata: {name: chat, namespace: team-a}
        spec:
          load: {maxTokens: 2048}
        """,
}
IN_FORCE = (
    ("ClusterKVOffloadPolicy/default", "load.maxTokens 8192, host memory 4Gi"),
    ("KVOffloadPolicy/team-a/chat", "load.maxTokens 2048 (wins for team-a)"),
)


def write_policies(folder: Path) -> None:
    """Write the YAML files that the agent reads."""
    folder.mkdir()
    for name, text in POLICIES.items():
        (folder / name).write_text(textwrap.dedent(text))


def start_agent(directory: Path, *, policies: Path, namespace: str) -> tuple[Process, Path, str]:
    """Start a standalone agent; returns it, its socket and its HTTP address."""
    socket = directory / "agent" / "agent.sock"
    socket.parent.mkdir()
    process = Process(
        [
            program("kvoffload-agent"), "run", "--policies", str(policies),
            "--socket", str(socket), "--state-dir", str(directory / "state"),
            "--namespace", namespace, "--http", "127.0.0.1:0",
        ],
        name="agent",
        log=directory / "agent.log",
    )  # fmt: skip
    address = wait_listening(process)
    process.wait_until(socket.exists, what="its socket", deadline_seconds=START_SECONDS)
    return process, socket, address


def play(console: Console, *, directory: Path, requests: int, poison: bool) -> list[Check]:
    """Run the act; returns what it showed."""
    console.rule("[bold]Act one: one agent, two engines, policies from files")
    policies = directory / "policies"
    write_policies(policies)
    with all_stopped([]) as processes:
        agent, socket, _ = start_agent(directory, policies=policies, namespace="team-a")
        processes.append(agent)
        engines: dict[str, RunningEngine] = {}
        for number in range(ENGINES):
            run = EngineRun(
                name=f"engine-{number + 1}",
                socket=socket,
                requests=requests,
                shard=(number, ENGINES),
                arguments=[*SIZES, *(["--poison"] if poison and number == 0 else [])],
            )
            engines[run.name] = start_engine(run, directory=directory)
            processes.append(engines[run.name].process)
        figures = follow(
            console,
            title="Mooncake conversation trace, scaled down",
            engines=engines,
            policies=lambda: IN_FORCE,
            news=["both engines share the cache of namespace team-a through one agent"],
            each_frame=lambda _: None,
            deadline_seconds=DEADLINE_SECONDS,
        )
    return [*checks_of_bytes(total(list(figures.values())), at_least_bytes=AT_LEAST_BYTES),
            check_limited(total(list(figures.values())))]  # fmt: skip


def check_limited(figures: Figures) -> Check:
    """The tenant's policy, not the cluster's, must have refused something."""
    refused = figures.limited.get("KVOffloadPolicy/team-a/chat", 0)
    return Check(
        holds=refused > 0,
        statement=f"KVOffloadPolicy/team-a/chat refused {refused:,} tokens",
    )

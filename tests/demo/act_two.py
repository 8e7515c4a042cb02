"""Act two: a real API server. kubectl changes a cap while engines run."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from rich.console import Console
from tests.cluster.controlplane import ControlPlane
from tests.demo.act_one import SIZES
from tests.demo.engines import EngineRun, RunningEngine, follow, start_engine
from tests.demo.table import Figures, total
from tests.demo.verdict import Check, checks_of_bytes
from tests.harness.installation import Installation, wait_for
from tests.harness.processes import all_stopped

NODE = "this-machine"
TENANT = "team-a"
DEADLINE_SECONDS = 300.0
# Each is a value that vLLM reads as "no cap".
INVALID_VALUES = ("8", -1, True)

DEFAULT_CAP = 2048
TENANT_CAP = 256
DEFAULT_POLICY = f"""\
    apiVersion: kvoffload.io/v1alpha1
    kind: ClusterKVOffloadPolicy
    metadata: {{name: default}}
    spec:
      defaults: {{load: {{maxTokens: {DEFAULT_CAP}}}}}
      nodeBudget: {{hostMemory: 2Gi}}
    """
DEFAULT_SOURCE = "ClusterKVOffloadPolicy/default"
TENANT_SOURCE = f"KVOffloadPolicy/{TENANT}/chat"


def play(console: Console, *, directory: Path, requests: int, poison: bool) -> list[Check]:
    """Run the act; returns what it showed."""
    console.rule("[bold]Act two: a real control plane, a cap changed by kubectl")
    console.print("starting etcd, kube-apiserver and kube-controller-manager")
    with ControlPlane.start() as cluster, all_stopped([]) as processes:
        installation = Installation(cluster, directory=directory, node=NODE)
        installation.processes = processes
        prepare(console, installation)
        return [
            *_cap_changes_while_engines_run(
                console, installation, requests=requests, poison=poison
            ),
            *_invalid_values(console, installation, requests=max(2, requests // 8)),
        ]


def prepare(console: Console, installation: Installation) -> None:
    """Install everything and make the tenant's engine pods."""
    cluster = installation.cluster
    installation.install()
    cluster.create_namespace(name=TENANT)
    console.print(f"$ kubectl apply -f -   # {DEFAULT_SOURCE}, load.maxTokens {DEFAULT_CAP}")
    apply(cluster, DEFAULT_POLICY)
    console.print("starting the operator and the node's agent, each with its own ServiceAccount")
    installation.start_operator()
    installation.start_agent()


def tenant_policy(max_tokens: int) -> str:
    """Return the tenant's policy with this cap."""
    return f"""\
    apiVersion: kvoffload.io/v1alpha1
    kind: KVOffloadPolicy
    metadata: {{name: chat, namespace: {TENANT}}}
    spec:
      podSelector: {{matchLabels: {{app: chat}}}}
      load: {{maxTokens: {max_tokens}}}
    """


def apply(cluster: ControlPlane, manifest: str) -> None:
    """Do what a user does: kubectl apply, from standard input."""
    cluster.kubectl("apply", "-f", "-", input=textwrap.dedent(manifest))


def _cap_changes_while_engines_run(
    console: Console, installation: Installation, *, requests: int, poison: bool
) -> list[Check]:
    cluster = installation.cluster
    news = [f"{DEFAULT_SOURCE} caps every pod's load at {DEFAULT_CAP} tokens"]
    engines = start_engines(
        installation,
        [f"chat-{number}" for number in (1, 2)],
        requests=requests,
        arguments=["--poison"] if poison else [],
    )
    before: list[Figures] = []

    def halfway(figures: Figures) -> None:
        if not before and figures.requests * 2 >= figures.requests_total > 0:
            console.print(f"$ kubectl apply -f -   # {TENANT_SOURCE}, load.maxTokens {TENANT_CAP}")
            apply(cluster, tenant_policy(TENANT_CAP))
            before.append(figures)
            news.append(f"kubectl apply: {TENANT_SOURCE} now caps it at {TENANT_CAP}; no restart")

    def in_force() -> list[tuple[str, str]]:
        lines = [(DEFAULT_SOURCE, f"load.maxTokens {DEFAULT_CAP}")]
        return [*lines, (TENANT_SOURCE, f"load.maxTokens {TENANT_CAP}")] if before else lines

    after = total(
        list(
            follow(
                console,
                title=f"namespace {TENANT}, node {NODE}",
                engines=engines,
                policies=in_force,
                news=news,
                each_frame=halfway,
                deadline_seconds=DEADLINE_SECONDS,
            ).values()
        )
    )
    console.print("$ kubectl get kvop,ckvop,kvon -A")
    # Its lines are as long as they are: wrapping them would break kubectl's columns.
    console.print(cluster.kubectl("get", "kvop,ckvop,kvon", "-A").stdout, soft_wrap=True)
    refused_before = before[0].limited.get(TENANT_SOURCE, 0) if before else 0
    refused_after = after.limited.get(TENANT_SOURCE, 0)
    return [
        *checks_of_bytes(after, at_least_bytes=1),
        Check(
            holds=bool(before) and refused_before == 0 and refused_after > 0,
            statement=(
                f"the smaller cap took effect while engines ran: {TENANT_SOURCE} refused "
                f"{refused_before:,} tokens before it was applied and {refused_after:,} after"
            ),
        ),
    ]


def _invalid_values(console: Console, installation: Installation, *, requests: int) -> list[Check]:
    checks: list[Check] = []
    for number, value in enumerate(INVALID_VALUES):
        name = f"invalid-{number}"
        params = json.dumps({"max_load_tokens": value})
        console.print(f"a client sends kv_transfer_params {params}")
        engines = start_engines(
            installation, [name], requests=requests, arguments=["--params", params]
        )
        figures = total(
            list(
                follow(
                    console,
                    title=f"requests with {params}",
                    engines=engines,
                    policies=lambda: [(TENANT_SOURCE, f"load.maxTokens {TENANT_CAP}")],
                    news=["a malformed value counts as absent: the policy's cap holds"],
                    each_frame=lambda _: None,
                    deadline_seconds=DEADLINE_SECONDS,
                ).values()
            )
        )
        checks.append(
            Check(
                holds=0 < figures.largest_load_tokens <= TENANT_CAP
                and figures.limited.get(TENANT_SOURCE, 0) > 0,
                statement=(
                    f"{params}: no request loaded more than {figures.largest_load_tokens} tokens, "
                    f"the cap of {TENANT_SOURCE} is {TENANT_CAP}"
                ),
            )
        )
    invalid = invalid_fields(installation)
    checks.append(
        Check(
            holds=invalid > 0,
            statement=f"the agent counted {invalid} malformed request fields",
        )
    )
    return checks


def start_engines(
    installation: Installation, names: list[str], *, requests: int, arguments: list[str]
) -> dict[str, RunningEngine]:
    """Make pods, wait until the agent knows them, and start their engines."""
    tokens = {
        name: installation.engine_pod(name, namespace=TENANT, labels={"app": "chat"})
        for name in names
    }
    wait_for(
        lambda: set(names) <= known_pods(installation),
        what=f"the entries of {', '.join(names)} reaching the node",
    )
    engines: dict[str, RunningEngine] = {}
    for number, name in enumerate(names):
        run = EngineRun(
            name=name,
            socket=installation.socket,
            requests=requests,
            shard=(number, len(names)),
            token=tokens[name],
            arguments=[*SIZES, *arguments],
        )
        engines[name] = start_engine(run, directory=installation.directory)
        installation.processes.append(engines[name].process)
    return engines


def known_pods(installation: Installation) -> set[str]:
    """Return the pods that the agent has reported as in force."""
    answer = installation.cluster.kubectl(
        "get", "kvon", installation.node, "-o", "json", check=False
    )
    if answer.returncode != 0:
        return set()
    node = json.loads(answer.stdout)
    if node.get("status", {}).get("appliedHash") != node["spec"].get("hash"):
        return set()
    return {pod["name"] for pod in node["spec"].get("pods", [])}


def invalid_fields(installation: Installation) -> int:
    """Return how many malformed fields the agent counted."""
    state = installation.debug_state()
    return sum(
        count for figures in state["namespaces"].values() for count in figures["invalid"].values()
    )

"""What ``kubectl kvoffload`` prints, over a server that answers with canned objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.operator.apiserver import server
from tests.unit.operator.test_kubectl import ENTRY, POD, offload_node
from typer.testing import CliRunner, Result

from kvoffload_operator.kubectl.cli import app

GROUP = "/apis/kvoffload.io/v1alpha1"


class Cluster:
    """Objects by path, and the plug-in that looks at them."""

    def __init__(self, kubeconfig: Path) -> None:
        self.objects: dict[str, Any] = {}
        self.kubeconfig = kubeconfig

    def answer(self, path: str) -> tuple[int, Any]:
        if path in self.objects:
            return 200, self.objects[path]
        return 200, {"metadata": {"resourceVersion": "1"}, "items": []}

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--kubeconfig", str(self.kubeconfig)])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Give an empty cluster."""
    made = Cluster(tmp_path / "config")
    with server(made.answer) as url:
        made.kubeconfig.write_text(
            json.dumps(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "k"}}],
                    "clusters": [{"name": "k", "cluster": {"server": url}}],
                }
            )
        )
        yield made


@pytest.fixture
def explained(cluster: Cluster) -> Cluster:
    """Give a cluster with one engine pod whose cap was cut."""
    cut = {**ENTRY["provenance"][0], "clampedSource": "KVOffloadPolicy/team-a/chat"}
    node = offload_node()
    node["spec"]["entries"] = [{**ENTRY, "provenance": [cut, *ENTRY["provenance"][1:]]}]
    cluster.objects["/api/v1/namespaces/team-a/pods/vllm-0"] = POD
    cluster.objects[f"{GROUP}/kvoffloadnodes/n1"] = node
    return cluster


def nodes(*items: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "items": list(items)}


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize(
    "command", [("explain", "pod", "vllm-0", "-n", "team-a"), ("nodes",), ("status",)]
)
def test_every_key_is_camel_case_as_in_the_api(
    explained: Cluster, command: tuple[str, ...], form: str
) -> None:
    explained.objects[f"{GROUP}/kvoffloadnodes"] = nodes(offload_node())
    explained.objects[f"{GROUP}/kvoffloadpolicies"] = nodes({"metadata": {"name": "p"}})
    done = explained.run(*command, "-o", form)

    assert done.exit_code == 0
    found = list(keys(yaml.safe_load(done.stdout)))
    assert len(found) > 4
    assert [key for key in found if not re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", key)] == []


def test_a_document_tells_what_was_cut_and_whose_it_was(explained: Cluster) -> None:
    done = explained.run("explain", "pod", "vllm-0", "-n", "team-a", "-o", "json")

    assert json.loads(done.stdout)["fields"][0] == {
        "field": "load.maxTokens",
        "value": "8",
        "source": "ClusterKVOffloadPolicy/default#limits",
        "clampedFrom": "64",
        "clampedSource": "KVOffloadPolicy/team-a/chat",
    }


def test_wide_adds_whose_value_was_cut(explained: Cluster) -> None:
    command = ("explain", "pod", "vllm-0", "-n", "team-a", "-o")
    narrow, wide = (explained.run(*command, form).stdout for form in ("table", "wide"))

    assert "KVOffloadPolicy/team-a/chat" not in narrow.split("FIELD")[1]
    header, first, *_ = wide.split("\n\n")[1].splitlines()
    assert header.endswith("CLAMPED FROM   CLAMPED SOURCE")
    assert first.split()[-2:] == ["64", "KVOffloadPolicy/team-a/chat"]


@pytest.mark.parametrize(
    ("command", "told", "next_step"),
    [
        ("status", "no policies", "docs/how-to/cluster.md"),
        ("nodes", "no nodes", "--node-selector"),
    ],
)
@pytest.mark.parametrize("form", ["table", "wide"])
def test_an_empty_cluster_is_nothing_to_show_and_the_message_says_what_to_do(
    cluster: Cluster, command: str, told: str, next_step: str, form: str
) -> None:
    done = cluster.run(command, "-o", form)

    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(told)
    assert next_step in done.stderr


@pytest.mark.parametrize(("command", "key"), [("status", "policies"), ("nodes", "nodes")])
def test_a_program_gets_an_empty_list(cluster: Cluster, command: str, key: str) -> None:
    done = cluster.run(command, "-o", "json")

    assert (done.exit_code, json.loads(done.stdout)) == (0, {key: []})


def test_that_no_agent_is_behind_is_good_news(cluster: Cluster) -> None:
    cluster.objects[f"{GROUP}/kvoffloadnodes"] = nodes(offload_node())
    done = cluster.run("nodes", "--stale")

    assert done.exit_code == 0
    assert done.stdout == "no stale nodes: each of 1 has its configuration in force\n"


def test_an_agent_that_is_behind_is_listed(cluster: Cluster) -> None:
    cluster.objects[f"{GROUP}/kvoffloadnodes"] = nodes(offload_node(applied="0" * 16))
    done = cluster.run("nodes", "--stale")

    assert done.exit_code == 0
    assert done.stdout.splitlines()[1].split()[0] == "n1"

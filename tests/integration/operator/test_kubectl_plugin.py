"""``kubectl kvoffload`` against a real API server."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from tests.integration.operator.conftest import CLI, Cluster, populate

pytestmark = pytest.mark.cluster


def run_cli(cluster: Cluster, *arguments: str) -> str:
    done = subprocess.run(
        [str(CLI), *arguments, "--kubeconfig", str(cluster.plane.kubeconfig)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_explain_names_the_source_of_each_field(cluster: Cluster) -> None:
    populate(cluster)
    done = cluster.plane.kubectl  # the plug-in uses the same kubeconfig as kubectl
    assert done("get", "pod", "vllm-0", "-n", cluster.namespace).returncode == 0
    text = run_cli(cluster, "explain", "pod", "vllm-0", "-n", cluster.namespace)

    [line] = [line for line in text.splitlines() if line.startswith("load.maxTokens")]
    assert line.split() == [
        "load.maxTokens",
        "50",
        f"KVOffloadPolicy/{cluster.namespace}/chat",
        "-",
    ]
    fields = json.loads(
        run_cli(cluster, "explain", "pod", "vllm-0", "-n", cluster.namespace, "-o", "json")
    )["fields"]
    assert len({field["field"] for field in fields}) == len(fields)
    assert all(field["source"] for field in fields)


def test_kubectl_finds_the_plug_in_by_its_name(cluster: Cluster) -> None:
    populate(cluster)
    path = f"{CLI.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [
            str(cluster.plane.programs["kubectl"]),
            *("kvoffload", "status", "-o", "wide"),
            *("--kubeconfig", str(cluster.plane.kubeconfig)),
        ],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split()[-1] == "MESSAGE"


def test_explain_says_what_to_do_about_a_pod_that_is_not_there(cluster: Cluster) -> None:
    done = subprocess.run(
        [
            str(CLI), "explain", "pod", "nope", "-n", cluster.namespace,
            "--kubeconfig", str(cluster.plane.kubeconfig),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert f"kubectl get pods -n {cluster.namespace} -l kvoffload.io/engine=true" in done.stderr


def test_status_and_nodes_show_what_is_in_force(cluster: Cluster) -> None:
    populate(cluster)

    assert f"KVOffloadPolicy/{cluster.namespace}/chat" in run_cli(cluster, "status")
    [row] = [
        line.split()
        for line in run_cli(cluster, "nodes").splitlines()
        if line.startswith(cluster.node)
    ]
    assert row[3:] == ["yes", "1", "1"]

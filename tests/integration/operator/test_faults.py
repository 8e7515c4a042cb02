"""The operator when the cluster around it is not as it should be."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fixtures import CRD_DIRECTORY, apply_crds
from tests.harness.processes import Process
from tests.integration.operator.conftest import (
    PROGRAM,
    START_S,
    SYSTEM,
    Cluster,
    grant,
    launch,
    wait_for,
)

pytestmark = pytest.mark.cluster


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Give a list of processes to stop at the end."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.stop()


def test_it_waits_for_the_crds_says_so_and_ends_when_they_vanish(
    own_control_plane: ControlPlane, tmp_path: Path, started: list[Process]
) -> None:
    plane = own_control_plane
    kubeconfig = grant(plane)
    operator = launch(kubeconfig, tmp_path / "first.log")
    started.append(operator.process)
    [told] = wait_for(
        lambda: [line for line in operator.log() if line["event"] == "waiting_for_crds"],
        what="a line that names what is missing",
    )
    assert "kvoffload.io/v1alpha1" in told["err"]
    assert not operator.ready()

    apply_crds(plane)
    operator.process.wait_until(operator.ready, what="ready", deadline_seconds=START_S)
    plane.create_node(name="n1")
    cluster = Cluster(plane=plane, namespace="default", node="n1")
    cluster.offload_node()

    for file in sorted(CRD_DIRECTORY.glob("*.yaml")):
        plane.kubectl("delete", "-f", str(file), "--wait=false")
    wait_for(lambda: not operator.process.running, what="the end", deadline_s=60)
    assert operator.process.popen.returncode == 1

    # Whoever restarts it (kubelet) gets one that converges by itself.
    again = launch(kubeconfig, tmp_path / "second.log")
    started.append(again.process)
    wait_for(lambda: plane.kubectl("get", "crd", "-o", "name").stdout == "", what="no CRD")
    apply_crds(plane)
    again.process.wait_until(again.ready, what="ready", deadline_seconds=START_S)
    cluster.offload_node()


def test_after_a_restart_of_the_api_server_it_goes_on_by_itself(
    own_control_plane: ControlPlane, tmp_path: Path, started: list[Process]
) -> None:
    plane = own_control_plane
    apply_crds(plane)
    operator = launch(grant(plane), tmp_path / "operator.log", "--no-leader-elect")
    started.append(operator.process)
    operator.process.wait_until(operator.ready, what="ready", deadline_seconds=START_S)
    plane.create_node(name="n1")
    cluster = Cluster(plane=plane, namespace="default", node="n1")
    uid = cluster.engine("vllm-0")
    cluster.wait_entry(uid, lambda _entry: True)

    plane.restart_api_server(kill=True)
    cluster.policy("chat", {"load": {"maxTokens": 9}})
    wait_for(
        lambda: (cluster.entry(uid) or {}).get("load", {}).get("maxTokens") == 9,
        what="the policy on the node",
        deadline_s=60,
    )
    assert operator.process.running


def test_a_leader_that_cannot_renew_ends_with_an_error_before_another_may_lead(
    own_control_plane: ControlPlane, tmp_path: Path, started: list[Process]
) -> None:
    plane = own_control_plane
    apply_crds(plane)
    operator = launch(grant(plane), tmp_path / "operator.log")
    started.append(operator.process)
    operator.process.wait_until(operator.ready, what="ready", deadline_seconds=START_S)
    wait_for(lambda: operator.metric("leader_election_master_status") == 1, what="leading")
    plane.stop_api_server(kill=True)
    wait_for(lambda: not operator.process.running, what="the end", deadline_s=15)

    assert operator.process.popen.returncode == 1
    [line] = [line for line in operator.log() if "leader election lost" in line.get("err", "")]
    assert line["event"] == "failed"


def refused(kubeconfig: Path) -> tuple[int, dict[str, Any]]:
    """Run an operator to its end; return the exit code and its only complaint."""
    done = subprocess.run(
        [
            str(PROGRAM), "run", "--kubeconfig", str(kubeconfig),
            "--host", "127.0.0.1", "--port", "0", "--namespace", SYSTEM,
        ],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )  # fmt: skip
    records = [json.loads(line) for line in done.stdout.splitlines()]
    [told] = [record for record in records if record["level"] in {"warning", "error"}]
    return done.returncode, told


def test_credentials_or_rights_that_are_refused_at_the_start_end_it_with_3(
    control_plane: ControlPlane, crds: None, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = control_plane.kubeconfig_for_service_account(
        namespace=namespace, service_account="default"
    )
    code, told = refused(kubeconfig)
    assert (code, told["event"], told["status"]) == (3, "no_access", 403)
    assert f"system:serviceaccount:{namespace}:default" in told["err"]

    document = yaml.safe_load(kubeconfig.read_text())
    document["users"][0]["user"] = {"token": "bad"}
    wrong = tmp_path / "wrong"
    wrong.write_text(yaml.safe_dump(document))
    code, told = refused(wrong)
    assert (code, told["event"], told["status"]) == (3, "no_access", 401)

"""Reports about an operator that is away: deletions, restarts and what stays in force."""

from __future__ import annotations

import json

import pytest
from tests.cluster.controlplane import ControlPlane
from tests.harness.engine import STORED_TOKENS, serve_prompt
from tests.harness.installation import Installation
from tests.integration.slice.conftest import (
    Apply,
    MakeEngine,
    cluster_default,
    eventually_loads,
    store_prompt,
    tenant_policy,
)

pytestmark = pytest.mark.cluster


def test_b51_a_policy_deleted_while_the_operator_is_away_goes_at_once(
    installation: Installation,
    control_plane: ControlPlane,
    namespace: str,
    apply: Apply,
    engines: MakeEngine,
) -> None:
    apply(cluster_default(STORED_TOKENS))
    apply(tenant_policy(namespace, max_tokens=20))
    operator = installation.start_operator()
    installation.start_agent()
    engine = engines()
    store_prompt(engine)
    eventually_loads(engine, 16)

    operator.stop()
    # kubectl waits until the object is gone; a finalizer would keep it until this times out.
    control_plane.kubectl("delete", "kvop", "chat", "-n", namespace, "--timeout=10s")
    assert serve_prompt(engine) == 16, "without the operator the last configuration holds"

    installation.start_operator()
    eventually_loads(engine, STORED_TOKENS)


def test_b57_no_restart_is_read_as_a_capacity_of_0(
    installation: Installation,
    control_plane: ControlPlane,
    namespace: str,
    apply: Apply,
    engines: MakeEngine,
) -> None:
    apply(cluster_default(STORED_TOKENS))
    apply(
        f"""\
        apiVersion: kvoffload.io/v1alpha1
        kind: KVOffloadPolicy
        metadata: {{name: size, namespace: {namespace}}}
        spec: {{hostMemory: {{capacity: 64Mi}}}}
        """
    )
    operator = installation.start_operator()
    agent = installation.start_agent()
    engine = engines()
    store_prompt(engine)
    eventually_loads(engine, STORED_TOKENS)
    stored = engine.stats.stored_tokens
    mapped = installation.debug_state()["memory"]["mapped"]

    operator.kill()
    installation.start_operator()
    for _ in range(5):
        assert serve_prompt(engine) == STORED_TOKENS
    assert engine.stats.stored_tokens == stored, "nothing was evicted, so nothing is stored again"
    assert installation.debug_state()["memory"]["mapped"] == mapped
    node = json.loads(
        control_plane.kubectl("get", "kvoffloadnode", installation.node, "-o", "json").stdout
    )
    assert node["spec"]["entries"], "the entry with the capacity is still there"

    agent.kill()
    installation.start_agent()
    store_prompt(engine)
    eventually_loads(engine, STORED_TOKENS)
    [part] = installation.debug_state()["partitions"]
    assert part["capacity"] == 64 << 20

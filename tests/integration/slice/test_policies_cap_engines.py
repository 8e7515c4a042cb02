"""Policies applied with kubectl cap what an engine loads, at once and without a restart."""

from __future__ import annotations

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


@pytest.fixture(autouse=True)
def running(installation: Installation, apply: Apply) -> None:
    apply(cluster_default(100))
    installation.start_operator()
    installation.start_agent()


def test_a_cap_follows_the_tenants_policy_then_the_default_then_nothing(
    control_plane: ControlPlane, namespace: str, apply: Apply, engines: MakeEngine
) -> None:
    engine = engines()
    store_prompt(engine)
    eventually_loads(engine, 96)

    apply(tenant_policy(namespace, max_tokens=20))
    eventually_loads(engine, 16)
    apply(tenant_policy(namespace, max_tokens=0))
    eventually_loads(engine, 0)

    control_plane.kubectl("delete", "kvop", "chat", "-n", namespace)
    eventually_loads(engine, 96)
    control_plane.kubectl("delete", "ckvop", "default")
    eventually_loads(engine, STORED_TOKENS)


@pytest.mark.parametrize("bad", ["8", -1, True])
def test_a_malformed_request_field_gets_the_policys_cap(
    namespace: str, apply: Apply, engines: MakeEngine, bad: object
) -> None:
    engine = engines()
    store_prompt(engine)
    apply(tenant_policy(namespace, max_tokens=20))
    eventually_loads(engine, 16)

    assert serve_prompt(engine, params={"max_load_tokens": bad}) == 16


def test_a_policy_that_selects_other_pods_leaves_the_default(
    namespace: str, apply: Apply, engines: MakeEngine
) -> None:
    chat = engines("chat", labels={"app": "chat"})
    batch = engines("batch", labels={"app": "batch"})
    store_prompt(chat)
    apply(
        f"""\
        apiVersion: kvoffload.io/v1alpha1
        kind: KVOffloadPolicy
        metadata: {{name: chat, namespace: {namespace}}}
        spec:
          podSelector: {{matchLabels: {{app: chat}}}}
          load: {{maxTokens: 32}}
        """
    )
    eventually_loads(chat, 32)

    # Both are of one namespace, so what one stored the other loads.
    assert serve_prompt(batch) == 96

"""SIGKILL of agent and operator: engines recompute and go on, and policy stays in force."""

from __future__ import annotations

import pytest
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


def test_engines_recompute_without_the_agent_and_load_again_when_it_is_back(
    installation: Installation, apply: Apply, engines: MakeEngine
) -> None:
    apply(cluster_default(100))
    installation.start_operator()
    agent = installation.start_agent()
    engine = engines()
    store_prompt(engine)
    eventually_loads(engine, 96)

    agent.kill()
    assert serve_prompt(engine) == 0

    installation.start_agent()
    stored = engine.stats.stored_tokens
    eventually_loads(engine, 96)
    assert engine.stats.stored_tokens > stored, "host memory of the first agent was gone"


def test_agents_keep_their_configuration_without_the_operator_over_their_own_restart(
    installation: Installation, namespace: str, apply: Apply, engines: MakeEngine
) -> None:
    apply(cluster_default(STORED_TOKENS))
    apply(tenant_policy(namespace, max_tokens=20))
    operator = installation.start_operator()
    agent = installation.start_agent()
    engine = engines()
    store_prompt(engine)
    eventually_loads(engine, 16)

    operator.kill()
    assert serve_prompt(engine) == 16
    agent.kill()
    installation.start_agent()
    eventually_loads(engine, 16)


def test_an_agent_that_starts_without_an_api_server_uses_its_last_configuration(
    installation: Installation, namespace: str, apply: Apply, engines: MakeEngine
) -> None:
    apply(tenant_policy(namespace, max_tokens=20))
    installation.start_operator()
    agent = installation.start_agent()
    engine = engines()
    store_prompt(engine)
    eventually_loads(engine, 16)
    kubeconfig = installation.agent_kubeconfig()

    agent.kill()
    installation.cluster.stop_api_server(kill=True)
    try:
        installation.start_agent(kubeconfig=kubeconfig)
        # Tokens cannot be reviewed while the API server is away: nobody new is let in.
        assert serve_prompt(engine) == 0
    finally:
        installation.cluster.start_api_server()
    eventually_loads(engine, 16)

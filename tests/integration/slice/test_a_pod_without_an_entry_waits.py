"""Until a pod's entry has reached its agent, the pod loads and stores nothing."""

from __future__ import annotations

import pytest
from tests.harness.engine import serve_prompt
from tests.harness.installation import Installation
from tests.integration.slice.conftest import (
    Apply,
    MakeEngine,
    cluster_default,
    eventually_loads,
    store_prompt,
)

pytestmark = pytest.mark.cluster


def test_a_pod_that_no_operator_has_seen_neither_loads_nor_stores(
    installation: Installation, apply: Apply, engines: MakeEngine
) -> None:
    apply(cluster_default(100))
    operator = installation.start_operator()
    installation.start_agent()
    known = engines("known")
    store_prompt(known)

    operator.kill()
    unknown = engines("unknown")
    loaded = [serve_prompt(unknown) for _ in range(3)]
    serve_prompt(unknown, prefix=2)

    assert (loaded, unknown.stats.stored_tokens) == ([0, 0, 0], 0)
    assert serve_prompt(known) == 96

    installation.start_operator()
    eventually_loads(unknown, 96)

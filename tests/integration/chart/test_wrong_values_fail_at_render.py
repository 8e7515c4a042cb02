"""A wrong value fails before anything is sent to a cluster, and the message names its key."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.helm import Helm, HelmError


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replics": 1}, "replics"),
        ({"operator": {"replics": 1}}, "replics"),
        ({"operator": {"replicas": "two"}}, "operator/replicas"),
        ({"clusterDefaults": {"load": {"maxToken": 1}}}, "maxToken"),
        ({"clusterDefaults": {"load": {"maxTokens": -1}}}, "load/maxTokens"),
        ({"clusterDefaults": {"load": {"maxTokens": 8.5}}}, "load/maxTokens"),
        ({"clusterDefaults": {"load": {"maxTokens": "8192"}}}, "load/maxTokens"),
        ({"clusterDefaults": {"load": {"timeoutSeconds": 0}}}, "load/timeoutSeconds"),
        ({"clusterDefaults": {"load": {"minTokens": 9, "maxTokens": 8}}}, "load.minTokens"),
        ({"clusterDefaults": {"store": {"scope": "Everything"}}}, "store/scope"),
        ({"clusterLimits": {"load": {"minTokens": 1}}}, "minTokens"),
        ({"clusterLimits": {"hostMemory": {"capacity": "30GB"}}}, "hostMemory/capacity"),
        ({"nodeBudget": {"hostMemory": "0"}}, "nodeBudget/hostMemory"),
        ({"agent": {"image": {"digest": "latest"}}}, "image/digest"),
        ({"agent": {"namespace": "kvo-system"}}, "agent.namespace"),
        ({"agent": {"pools": [{"name": "a", "nodeSelector": {}}]}}, "resources"),
        ({"agent": {"pools": [{"name": "A"}]}}, "name"),
        ({"agent": {"maxUnavailable": "0%"}}, "agent/maxUnavailable"),
    ],
)
def test_a_wrong_value_is_named(helm: Helm, values: dict[str, Any], named: str) -> None:
    with pytest.raises(HelmError) as caught:
        helm.template(values=values)
    assert named in str(caught.value)


def test_a_typo_on_the_command_line_is_named(helm: Helm) -> None:
    with pytest.raises(HelmError, match="replics"):
        helm.template("--set", "replics=1")

"""What the shipped manifests grant: no more than the two programs use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

RBAC = Path(__file__).resolve().parents[3] / "charts" / "kvoffload" / "files" / "rbac"
READ = {"get", "list", "watch"}


def rules(name: str) -> list[tuple[str, str, frozenset[str]]]:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all((RBAC / f"{name}.yaml").read_text()))
    return [
        (group, resource, frozenset(rule["verbs"]))
        for document in documents
        for rule in document.get("rules", ())
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]


@pytest.mark.parametrize("name", ["operator", "agent", "pools"])
def test_nothing_is_granted_by_wildcard_and_no_secret_is_read(name: str) -> None:
    for group, resource, verbs in rules(name):
        assert "*" not in {group, resource, *verbs}
        assert resource != "secrets"
        assert not verbs & {"escalate", "bind", "impersonate"}


def test_the_operator_writes_only_its_own_kinds_and_its_lease() -> None:
    writes = {(resource, verb) for _, resource, verbs in rules("operator") for verb in verbs - READ}

    assert writes == {
        ("kvoffloadpolicies/status", "patch"),
        ("clusterkvoffloadpolicies/status", "patch"),
        ("kvoffloadnodes", "create"),
        ("kvoffloadnodes", "patch"),
        ("kvoffloadnodes", "delete"),
        ("leases", "create"),
        ("leases", "update"),
    }


def test_the_agent_writes_only_status_and_events_of_nodes_and_asks_for_tokens() -> None:
    writes = {(resource, verb) for _, resource, verbs in rules("agent") for verb in verbs - READ}

    assert writes == {
        ("kvoffloadnodes/status", "patch"),
        ("tokenreviews", "create"),
        ("events", "create"),
    }
    roles = [
        document
        for document in yaml.safe_load_all((RBAC / "agent.yaml").read_text())
        if document["kind"] == "Role"
    ]
    # Events of Nodes are there, and the agent can tell none elsewhere.
    assert [role["metadata"]["namespace"] for role in roles] == ["default"]


def test_beside_agents_the_operator_writes_daemonsets_and_events_and_reads_one_config_map() -> None:
    writes = {(resource, verb) for _, resource, verbs in rules("pools") for verb in verbs - READ}

    assert writes == {
        ("daemonsets", "create"),
        ("daemonsets", "patch"),
        ("daemonsets", "delete"),
        ("events", "create"),
    }
    [role] = [
        document
        for document in yaml.safe_load_all((RBAC / "pools.yaml").read_text())
        if document["kind"] == "Role"
    ]
    [readable] = [rule for rule in role["rules"] if rule["resources"] == ["configmaps"]]
    assert readable["resourceNames"] == ["kvoffload-agents"]

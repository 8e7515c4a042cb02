"""The kubectl plug-in: what it explains, and what it says when there is nothing to explain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from kvoffload_operator.kubectl.cli import app
from kvoffload_operator.kubectl.explain import ExplainError, explain, node_of
from kvoffload_operator.kubectl.render import Output, age, document, table

POD: dict[str, Any] = {
    "metadata": {
        "name": "vllm-0",
        "namespace": "team-a",
        "uid": "u1",
        "labels": {"kvoffload.io/engine": "true"},
    },
    "spec": {"nodeName": "n1"},
}
ENTRY: dict[str, Any] = {
    "hash": "e" * 16,
    "source": "KVOffloadPolicy/team-a/chat",
    "load": {"maxTokens": 8, "tiers": [{"medium": "CPU", "locality": "Local"}]},
    "store": {"tiers": []},
    "provenance": [
        {
            "field": "load.maxTokens",
            "source": "ClusterKVOffloadPolicy/default#limits",
            "clampedFrom": "64",
        },
        {"field": "load.tiers", "source": "built-in"},
        {"field": "store.tiers", "source": "built-in"},
        {"field": "store.maxTokens", "source": "built-in"},
    ],
}


def offload_node(applied: str = "f" * 16, uid: str = "u1") -> dict[str, Any]:
    return {
        "metadata": {"name": "n1"},
        "spec": {
            "hash": "f" * 16,
            "entries": [ENTRY],
            "pods": [{"uid": uid, "namespace": "team-a", "name": "vllm-0", "entry": "e" * 16}],
        },
        "status": {"appliedHash": applied},
    }


def test_each_field_has_its_value_and_one_source() -> None:
    found = explain(POD, offload_node())
    rows = {row.field: (row.value, row.source, row.clamped_from) for row in found.rows}

    assert rows == {
        "load.maxTokens": ("8", "ClusterKVOffloadPolicy/default#limits", "64"),
        "load.tiers": ("CPU/Local", "built-in", ""),
        "store.tiers": ("(none)", "built-in", ""),
        "store.maxTokens": ("-", "built-in", ""),
    }
    assert found.in_force


def test_what_the_agent_has_not_applied_is_not_called_in_force() -> None:
    assert not explain(POD, offload_node(applied="0" * 16)).in_force


def test_a_pod_of_the_same_name_with_another_uid_has_no_entry() -> None:
    with pytest.raises(ExplainError, match="loads and stores nothing"):
        explain(POD, offload_node(uid="u2"))


def test_a_pod_without_the_label_is_told_the_label() -> None:
    pod = {**POD, "metadata": {**POD["metadata"], "labels": {}}}
    with pytest.raises(ExplainError, match=r"kvoffload\.io/engine: .true."):
        node_of(pod)


def test_a_pod_without_a_node_is_told_where_to_look() -> None:
    with pytest.raises(ExplainError, match="kubectl describe pod -n team-a vllm-0"):
        node_of({**POD, "spec": {}})


def test_columns_are_aligned_and_lines_have_no_trailing_blanks() -> None:
    assert table(("A", "LONGER"), [("xyz", "1"), ("q", "22")]) == (
        "A     LONGER\nxyz   1\nq     22"
    )


def test_json_keeps_the_order_in_which_fields_were_built() -> None:
    assert document({"b": 1, "a": [2]}, output=Output.JSON).split() == (
        ["{", '"b":', "1,", '"a":', "[", "2", "]", "}"]
    )
    assert document({"b": 1, "a": 2}, output=Output.YAML) == "b: 1\na: 2"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (10_799, "179m"), (10_800, "3h"), (200_000, "2d")],
)
def test_ages_are_written_as_kubectl_does(seconds: int, shown: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    created = (now - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    assert age(created, now=now) == shown


def test_a_mistyped_command_is_wrong_usage_with_a_suggestion() -> None:
    result = CliRunner().invoke(app, ["exlpain"])

    assert result.exit_code == 2
    assert "Did you mean 'explain'" in result.output


def test_without_a_cluster_the_exit_code_says_so() -> None:
    result = CliRunner().invoke(app, ["status", "--kubeconfig", "/does/not/exist"])

    assert result.exit_code == 3
    assert "--kubeconfig" in result.output


@pytest.mark.parametrize("command", [["explain", "pod"], ["status"], ["nodes"]])
def test_every_command_s_help_has_an_example(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])

    assert result.exit_code == 0
    assert "Example: kubectl kvoffload" in result.output

"""Policies from a directory: hot reload, and what a broken file may not do."""

from __future__ import annotations

from pathlib import Path

from kvoffload_agent.config.directory import DirectorySource
from kvoffload_agent.server.identity import Identity

CLUSTER = """
apiVersion: kvoffload.io/v1alpha1
kind: ClusterKVOffloadPolicy
metadata: {name: default}
spec:
  defaults: {load: {maxTokens: %d}}
  nodeBudget: {hostMemory: 2Gi, reservedMemory: 1Gi}
"""
NAMESPACED = """
apiVersion: kvoffload.io/v1alpha1
kind: KVOffloadPolicy
metadata: {name: chat, namespace: team-a}
spec:
  podSelector: {matchLabels: {app: vllm}}
  load: {maxTokens: %d}
"""
POD = Identity(namespace="team-a", pod="chat-0", uid="local/team-a/chat-0", labels={"app": "vllm"})
OTHER = Identity(namespace="team-a", pod="job-0", uid="local/team-a/job-0", labels={"app": "job"})


def source_of(folder: Path) -> DirectorySource:
    return DirectorySource(
        folder=folder,
        node_name="node-1",
        node_labels={},
        uid_namespaces={},
        namespace=None,
    )


def cap(source: DirectorySource, identity: Identity = POD) -> int | None:
    return source.resolve(source.entry(identity), None).caps.max_load_tokens


def test_an_empty_directory_gives_the_built_in_values(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    assert cap(source) is None
    assert source.waiting_for == ""
    assert source.budget.host_memory is None


def test_a_namespaced_policy_applies_to_the_pods_that_it_selects(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER % 4096)
    (tmp_path / "a.yml").write_text(NAMESPACED % 512)
    source = source_of(tmp_path)
    assert cap(source) == 512
    assert cap(source, OTHER) == 4096
    assert source.budget.host_memory == 2 << 30
    assert source.budget.reserved_memory == 1 << 30
    caps = source.resolve(source.entry(POD), None).caps
    assert caps.sources["load.maxTokens"] == "KVOffloadPolicy/team-a/chat"


def test_a_change_is_in_force_after_the_next_look(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER % 4096)
    source = source_of(tmp_path)
    before = source.version
    assert not source.look()
    path.write_text(CLUSTER % 300)
    assert source.look()
    assert source.version > before
    assert cap(source) == 300
    path.unlink()
    assert source.look()
    assert cap(source) is None


def test_a_broken_file_keeps_what_it_said_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER % 4096)
    source = source_of(tmp_path)
    for broken in ("spec: [", CLUSTER.replace("maxTokens: %d", "maxTokens: '8'"), "42", "\x00"):
        path.write_text(broken)
        assert source.look()
        assert cap(source) == 4096
        assert "cluster.yaml" in source.describe()["broken"]
    path.write_text(CLUSTER % 16)
    assert source.look()
    assert cap(source) == 16
    assert source.describe()["broken"] == {}


def test_a_file_that_was_never_good_lets_nobody_load_or_store(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(CLUSTER % 4096)
    (tmp_path / "bad.yaml").write_text("kind: KVOffloadPolicy")
    source = source_of(tmp_path)
    caps = source.resolve(source.entry(POD), None).caps
    assert (caps.max_load_tokens, caps.max_offload_tokens) == (0, 0)
    assert source.waiting_for == "a valid bad.yaml"
    (tmp_path / "bad.yaml").unlink()
    source.look()
    assert cap(source) == 4096
    assert source.waiting_for == ""


def test_a_directory_that_vanishes_keeps_what_was_in_force(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "cluster.yaml").write_text(CLUSTER % 4096)
    source = source_of(folder)
    folder.rename(tmp_path / "gone")
    assert not source.look()
    assert cap(source) == 4096


def test_hidden_and_other_files_are_no_policies(tmp_path: Path) -> None:
    (tmp_path / ".cluster.yaml.swp").write_text("garbage")
    (tmp_path / ".hidden.yaml").write_text("garbage: [")
    (tmp_path / "README.md").write_text("garbage: [")
    assert source_of(tmp_path).waiting_for == ""

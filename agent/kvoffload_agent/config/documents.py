"""Policies and identities in a directory of YAML files; each file is good or bad as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from pydantic import ValidationError

from kvoffload_agent.config.identities import FILE_NAME, IdentityEntry, parse_identities
from kvoffload_api.models.clusterpolicy import ClusterKVOffloadPolicy
from kvoffload_api.models.policy import KVOffloadPolicy
from kvoffload_api.names import API_VERSION, CLUSTER_POLICY_KIND, POLICY_KIND
from kvoffload_api.resolution import PolicySet

SUFFIXES: Final = frozenset({".yaml", ".yml"})
# Policies have 1 to 3 KB; a file of 10 MB is something else.
MAX_FILE_BYTES: Final = 10 * 1024 * 1024

Signature = tuple[int, int, int]
"""Change time, size and inode: together they move when a file is written or replaced."""


class DocumentError(Exception):
    """A file is not what it should be; the message says where and what may be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What one file holds."""

    policies: tuple[KVOffloadPolicy, ...] = ()
    cluster: tuple[ClusterKVOffloadPolicy, ...] = ()
    identities: tuple[IdentityEntry, ...] = ()


def signatures(folder: Path) -> dict[Path, Signature]:
    """Return the YAML files of a folder (not of its subfolders) and what tells their changes.

    Raises:
        OSError: the folder can't be listed.
    """
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix not in SUFFIXES or path.name.startswith("."):
            continue
        try:
            stat = path.stat()
        except FileNotFoundError:  # replaced at this moment: the next look sees the new one
            continue
        found[path] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    return found


def read(path: Path) -> Contents:
    """Read one file.

    Raises:
        DocumentError: it can't be read, is no YAML, or a document in it is not valid.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DocumentError(f"{path.name} has over {MAX_FILE_BYTES} bytes")
        documents = [item for item in yaml.safe_load_all(path.read_bytes()) if item is not None]
    except OSError as error:
        raise DocumentError(f"{path.name} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DocumentError(f"{path.name} is no valid YAML: {error}") from error
    if path.name == FILE_NAME:
        return _identities(path, documents)
    policies: list[KVOffloadPolicy] = []
    cluster: list[ClusterKVOffloadPolicy] = []
    for document in documents:
        found = _policy(path, document)
        if isinstance(found, KVOffloadPolicy):
            policies.append(found)
        else:
            cluster.append(found)
    return Contents(policies=tuple(policies), cluster=tuple(cluster))


def policy_set(contents: Iterable[Contents]) -> PolicySet:
    """Return all policies; of two with one name the later file's counts, as with apply."""
    namespaced: dict[str, KVOffloadPolicy] = {}
    cluster: dict[str, ClusterKVOffloadPolicy] = {}
    for each in contents:
        namespaced.update({policy.key: policy for policy in each.policies})
        cluster.update({policy.key: policy for policy in each.cluster})
    return PolicySet.of(namespaced=namespaced.values(), cluster=cluster.values())


def _identities(path: Path, documents: Sequence[Any]) -> Contents:
    try:
        entries = [entry for document in documents for entry in parse_identities(document)]
    except (msgspec.ValidationError, ValueError) as error:
        raise DocumentError(f"{path.name}: {error}") from error
    return Contents(identities=tuple(entries))


def _policy(path: Path, document: Any) -> KVOffloadPolicy | ClusterKVOffloadPolicy:
    if not isinstance(document, dict):
        raise DocumentError(f"{path.name} holds a {type(document).__name__}, not an object")
    kind, version = document.get("kind"), document.get("apiVersion")
    if version != API_VERSION or kind not in {POLICY_KIND, CLUSTER_POLICY_KIND}:
        raise DocumentError(
            f"{path.name}: {version} {kind} is neither a {POLICY_KIND} nor a"
            f" {CLUSTER_POLICY_KIND} of {API_VERSION}"
        )
    try:
        if kind == CLUSTER_POLICY_KIND:
            return ClusterKVOffloadPolicy.parse(document)
        policy = KVOffloadPolicy.parse(document)
    except ValidationError as error:
        raise DocumentError(f"{path.name}: {_faults(error)}") from error
    if not policy.metadata.namespace:
        raise DocumentError(f"{path.name}: {policy.metadata.name} needs `metadata.namespace`")
    return policy


def _faults(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in item['loc']) or 'document'}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False)
    )

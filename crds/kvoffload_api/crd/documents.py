"""The CustomResourceDefinitions of the three kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import yaml

from kvoffload_api.crd.schema import structural
from kvoffload_api.models import ClusterKVOffloadPolicy, KVOffloadNode, KVOffloadPolicy
from kvoffload_api.models.base import ApiModel
from kvoffload_api.names import (
    CLUSTER_POLICY_KIND,
    GROUP,
    NODE_KIND,
    POLICY_KIND,
    VERSION,
)

_HEADER: Final = "# Written by `make generate` from the models of kvoffload_api; do not edit.\n"
# Shown only by `kubectl get -o wide`.
_WIDE: Final = 1

_ANNOTATIONS_PLACE: Final = "annotations-of-the-chart"
_LABELS_PLACE: Final = "labels-of-the-chart"
_CHART_ANNOTATIONS: Final = """\
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""
_CHART_LABELS: Final = """\
  labels:
    {{- include "kvoffload.labels" . | nindent 4 }}
"""

_API_VERSION_HELP: Final = "Version of this schema, `kvoffload.io/v1alpha1`."
_KIND_HELP: Final = "Kind of this object."

Document = dict[str, Any]


def _column(
    name: str, path: str, help_text: str, *, kind: str = "string", priority: int = 0
) -> Document:
    column: Document = {
        "name": name,
        "type": kind,
        "description": help_text,
        "jsonPath": path,
    }
    return column | ({"priority": priority} if priority else {})


def _ready(field: str) -> str:
    return f'.status.conditions[?(@.type=="Ready")].{field}'


_READY: Final = _column("Ready", _ready("status"), "Whether it is in force.")
_REASON: Final = _column("Reason", _ready("reason"), "Why it is, or is not.")
_NODES: Final = _column(
    "Nodes", ".status.nodes.selected", "Nodes that hold its pods.", kind="integer"
)
_CURRENT: Final = _column(
    "Current", ".status.nodes.current", "Nodes on which it is in force.", kind="integer"
)
_AGE: Final = _column("Age", ".metadata.creationTimestamp", "Time since creation.", kind="date")
_PRIORITY: Final = ("Priority", ".spec.priority", "The highest wins.")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a CRD says beside its schema."""

    model: type[ApiModel]
    kind: str
    plural: str
    short_name: str
    scope: str
    columns: tuple[Document, ...]
    selectable: tuple[str, ...] = ()


KINDS: Final = (
    Kind(
        model=KVOffloadPolicy,
        kind=POLICY_KIND,
        plural="kvoffloadpolicies",
        short_name="kvop",
        scope="Namespaced",
        columns=(
            _READY,
            _REASON,
            _column("Mode", ".spec.mode", "Enforce, DryRun or Disabled."),
            _NODES,
            _CURRENT,
            _column(*_PRIORITY, kind="integer", priority=_WIDE),
            _AGE,
        ),
    ),
    Kind(
        model=ClusterKVOffloadPolicy,
        kind=CLUSTER_POLICY_KIND,
        plural="clusterkvoffloadpolicies",
        short_name="ckvop",
        scope="Cluster",
        columns=(
            _READY,
            _REASON,
            _column(*_PRIORITY, kind="integer"),
            _NODES,
            _CURRENT,
            _AGE,
        ),
    ),
    Kind(
        model=KVOffloadNode,
        kind=NODE_KIND,
        plural="kvoffloadnodes",
        short_name="kvon",
        scope="Cluster",
        columns=(
            _READY,
            _REASON,
            # A column shows a value as it is stored: the budget is a quantity, the status bytes.
            _column(
                "Budget", ".spec.budget.hostMemory", "Most host memory for chunks, if bounded."
            ),
            _column(
                "Mapped",
                ".status.memory.mapped",
                "Bytes of host memory that the arena holds.",
                kind="integer",
                priority=_WIDE,
            ),
            _column("Hash", ".spec.hash", "Configuration to apply.", priority=_WIDE),
            _column("Applied", ".status.appliedHash", "Configuration in force.", priority=_WIDE),
            _column("Agent", ".status.agentVersion", "Version of the agent.", priority=_WIDE),
            _AGE,
        ),
        selectable=(".status.appliedHash",),
    ),
)


def crd(kind: Kind) -> Document:
    """Return the CustomResourceDefinition of a kind."""
    version: Document = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": list(kind.columns),
    }
    if kind.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    version["schema"] = {"openAPIV3Schema": _root(kind.model)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/part-of": "kvoffload"},
        },
        "spec": {
            "group": GROUP,
            "scope": kind.scope,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [kind.short_name],
                "categories": ["kvoffload"],
            },
            "versions": [version],
        },
    }


def _root(model: type[ApiModel]) -> Document:
    """Return a kind's schema; of metadata the API server allows no more than its type."""
    schema = structural(model)
    schema["properties"] |= {
        "apiVersion": {"description": _API_VERSION_HELP, "type": "string"},
        "kind": {"description": _KIND_HELP, "type": "string"},
        "metadata": {"type": "object"},
    }
    schema["required"] = [name for name in schema["required"] if name != "metadata"]
    if not schema["required"]:
        del schema["required"]
    return schema


def render(kind: Kind) -> str:
    """Return the YAML text of a kind's CRD."""
    body = yaml.dump(crd(kind), Dumper=_PlainDumper, sort_keys=False, width=100)
    return _HEADER + body


def chart_template(kind: Kind) -> str:
    """Return the template of a kind's CRD in the Helm chart.

    Helm never upgrades what is in a chart's ``crds/``, so they are templates; the annotation keeps
    them, and with them every policy, when the release is uninstalled.
    """
    document = crd(kind)
    document["metadata"] = {
        "name": document["metadata"]["name"],
        "annotations": _ANNOTATIONS_PLACE,
        "labels": _LABELS_PLACE,
    }
    body = yaml.dump(document, Dumper=_PlainDumper, sort_keys=False, width=100)
    assert "{{" not in body, "the text of a CRD must not look like a template's action"
    body = body.replace(f"  annotations: {_ANNOTATIONS_PLACE}\n", _CHART_ANNOTATIONS)
    body = body.replace(f"  labels: {_LABELS_PLACE}\n", _CHART_LABELS)
    return f"{{{{- if .Values.crds.install }}}}\n{_HEADER}{body}{{{{- end }}}}\n"


class _PlainDumper(yaml.SafeDumper):
    """Writes equal parts out instead of linking them, as people and API servers read it."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def file_name(kind: Kind) -> str:
    """Return the name of the file that holds a kind's CRD."""
    return f"{GROUP}_{kind.plural}.yaml"

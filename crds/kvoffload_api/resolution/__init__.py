"""What a pod and a request may do: two pure functions, used by every component alike."""

from kvoffload_api.resolution.compiler import Budget, compile, compile_dry_run, node_budget  # noqa: A004 - the design's name
from kvoffload_api.resolution.effective import (
    NOTHING,
    Effective,
    EffectiveLoad,
    EffectiveStore,
    FieldSource,
)
from kvoffload_api.resolution.fields import EVERY_TIER, FIELDS, RULE_OF, text_of, within
from kvoffload_api.resolution.inputs import (
    ClusterPolicy,
    NamespacedPolicy,
    NodeView,
    PodView,
    PolicySet,
)
from kvoffload_api.resolution.request import InvalidField, Tightened, essence, tighten
from kvoffload_api.resolution.standing import Standing, clamps, conflicts, standings

__all__ = [
    "EVERY_TIER",
    "FIELDS",
    "NOTHING",
    "RULE_OF",
    "Budget",
    "ClusterPolicy",
    "Effective",
    "EffectiveLoad",
    "EffectiveStore",
    "FieldSource",
    "InvalidField",
    "NamespacedPolicy",
    "NodeView",
    "PodView",
    "PolicySet",
    "Standing",
    "Tightened",
    "clamps",
    "compile",
    "compile_dry_run",
    "conflicts",
    "essence",
    "node_budget",
    "standings",
    "text_of",
    "tighten",
    "within",
]

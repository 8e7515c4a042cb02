"""Which value a pod gets, and who set it: the order of ``operator.md`` 1.6 case by case."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.api.builders import (
    CPU_LOCAL,
    DISK_LOCAL,
    DISK_REMOTE,
    NODE,
    cluster,
    namespaced,
    pod,
    policies,
)

from kvoffload_api import resolution
from kvoffload_api.models import ClusterKVOffloadPolicy, KVOffloadPolicy, RequestOverride
from kvoffload_api.resolution import (
    FIELDS,
    NOTHING,
    RULE_OF,
    Effective,
    NodeView,
    PolicySet,
    compile_dry_run,
    node_budget,
    text_of,
    tighten,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "precedence.md"


def effective(*items: Any) -> Effective:
    return resolution.compile(policies(*items), pod(), NODE)


def load_cap(*items: Any) -> tuple[int | None, str]:
    found = effective(*items)
    return found.load.max_tokens, found.source_of("load.maxTokens")


def test_without_policies_everything_is_built_in() -> None:
    found = effective()

    assert found.load.max_tokens is None
    assert found.load.min_tokens == 0
    assert found.load.timeout_seconds == 5
    assert found.load.tiers is None
    assert found.store.max_tokens is None
    assert found.store.scope == "PromptOnly"
    assert found.store.min_reuse_count == 0
    assert found.store.tiers is None
    assert found.host_memory_capacity is None
    assert found.local_disk_capacity is None
    assert found.request_override is RequestOverride.TIGHTEN
    assert {found.source_of(rule.path) for rule in FIELDS} == {"built-in"}
    assert found.source == "built-in"
    assert found.bucket == "Namespace/team-a"


@pytest.mark.parametrize(
    ("items", "cap", "source"),
    [
        pytest.param(
            [namespaced(load={"maxTokens": 8}), cluster(defaults={"load": {"maxTokens": 9}})],
            8,
            "KVOffloadPolicy/team-a/chat",
            id="the namespace's policy comes before cluster defaults",
        ),
        pytest.param(
            [namespaced(store={"maxTokens": 8}), cluster(defaults={"load": {"maxTokens": 9}})],
            9,
            "ClusterKVOffloadPolicy/default#defaults",
            id="a field the namespace's policy does not set is inherited",
        ),
        pytest.param(
            [namespaced(load={"maxTokens": 0}), cluster(defaults={"load": {"maxTokens": 9}})],
            0,
            "KVOffloadPolicy/team-a/chat",
            id="zero is a value",
        ),
        pytest.param(
            [
                cluster("a", defaults={"load": {"maxTokens": 8}}),
                cluster("b", priority=1, defaults={"load": {"maxTokens": 9}}),
            ],
            9,
            "ClusterKVOffloadPolicy/b#defaults",
            id="of cluster defaults the highest priority comes first",
        ),
        pytest.param(
            [
                cluster("a", defaults={"load": {"maxTokens": 8}}),
                cluster("b", age=1, defaults={"load": {"maxTokens": 9}}),
            ],
            9,
            "ClusterKVOffloadPolicy/b#defaults",
            id="of equal priorities the older comes first",
        ),
        pytest.param(
            [
                cluster("b", defaults={"load": {"maxTokens": 9}}),
                cluster("a", defaults={"load": {"maxTokens": 8}}),
            ],
            8,
            "ClusterKVOffloadPolicy/a#defaults",
            id="of equally old ones the first by name",
        ),
        pytest.param(
            [
                namespaced("a", load={"maxTokens": 8}),
                namespaced("b", priority=1, load={"minTokens": 1}),
            ],
            None,
            "built-in",
            id="one policy wins a pod: fields of two are never mixed",
        ),
        pytest.param(
            [namespaced("a", mode="DryRun", priority=9, load={"maxTokens": 8})],
            None,
            "built-in",
            id="a policy in DryRun never wins",
        ),
        pytest.param(
            [namespaced(podSelector={"matchLabels": {"app": "other"}}, load={"maxTokens": 8})],
            None,
            "built-in",
            id="a policy that does not select the pod is not there",
        ),
        pytest.param(
            [namespaced(namespace="team-b", load={"maxTokens": 8})],
            None,
            "built-in",
            id="a policy of another namespace is not there",
        ),
        pytest.param(
            [
                cluster(
                    namespaceSelector={"matchLabels": {"tier": "silver"}},
                    defaults={"load": {"maxTokens": 8}},
                )
            ],
            None,
            "built-in",
            id="a cluster policy for other namespaces is not there",
        ),
        pytest.param(
            [
                cluster(
                    namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": "team-a"}},
                    defaults={"load": {"maxTokens": 8}},
                )
            ],
            8,
            "ClusterKVOffloadPolicy/default#defaults",
            id="a namespace can be selected by its name",
        ),
        pytest.param(
            [
                cluster(
                    nodeSelector={"matchLabels": {"size": "large"}},
                    limits={"load": {"maxTokens": 8}},
                )
            ],
            None,
            "built-in",
            id="a cluster policy for other nodes is not there",
        ),
        pytest.param(
            [namespaced(load={"maxTokens": 9}), cluster(limits={"load": {"maxTokens": 8}})],
            8,
            "ClusterKVOffloadPolicy/default#limits",
            id="a limit cuts the namespace's policy",
        ),
        pytest.param(
            [cluster(limits={"load": {"maxTokens": 8}})],
            8,
            "ClusterKVOffloadPolicy/default#limits",
            id="a limit cuts what nobody set",
        ),
        pytest.param(
            [namespaced(load={"maxTokens": 8}), cluster(limits={"load": {"maxTokens": 8}})],
            8,
            "KVOffloadPolicy/team-a/chat",
            id="a limit that cuts nothing is not the source",
        ),
        pytest.param(
            [
                cluster("a", priority=9, limits={"load": {"maxTokens": 9}}),
                cluster("b", limits={"load": {"maxTokens": 8}}),
            ],
            8,
            "ClusterKVOffloadPolicy/b#limits",
            id="every limit applies, whatever its priority",
        ),
        pytest.param(
            [namespaced(mode="Disabled"), cluster(defaults={"load": {"maxTokens": 9}})],
            0,
            "KVOffloadPolicy/team-a/chat",
            id="Disabled loads nothing and is named",
        ),
    ],
)
def test_the_cap_and_its_source(items: list[Any], cap: int | None, source: str) -> None:
    assert load_cap(*items) == (cap, source)


def test_disabled_stores_nothing_either() -> None:
    found = effective(namespaced(mode="Disabled"))

    assert found.loads_nothing
    assert found.stores_nothing
    assert found.source_of("store.maxTokens") == "KVOffloadPolicy/team-a/chat"


def test_a_cut_value_says_what_it_was_and_whose() -> None:
    found = effective(
        namespaced(hostMemory={"capacity": "64Gi"}),
        cluster("a", limits={"hostMemory": {"capacity": "48Gi"}}),
        cluster("b", limits={"hostMemory": {"capacity": "32Gi"}}),
    )

    source = found.field_source("hostMemory.capacity")
    assert found.host_memory_capacity == 32 * 2**30
    assert source.source == "ClusterKVOffloadPolicy/b#limits"
    assert source.clamped_from == "64Gi"
    assert source.clamped_source == "KVOffloadPolicy/team-a/chat"


def test_tiers_are_intersected_in_the_order_of_the_policy() -> None:
    found = effective(
        namespaced(load={"tiers": [DISK_REMOTE, DISK_LOCAL, CPU_LOCAL]}),
        cluster(limits={"load": {"tiers": [CPU_LOCAL, DISK_LOCAL]}}),
    )

    assert [str(tier.medium) for tier in found.load.tiers or ()] == ["Storage", "CPU"]


def test_an_empty_tier_list_is_host_memory_only_and_no_default_fills_it() -> None:
    found = effective(
        namespaced(load={"tiers": []}), cluster(defaults={"load": {"tiers": [DISK_LOCAL]}})
    )

    assert found.load.tiers == ()
    assert found.source_of("load.tiers") == "KVOffloadPolicy/team-a/chat"


def test_a_limit_on_disk_grants_no_disk() -> None:
    found = effective(
        cluster(limits={"localDisk": {"capacity": "1Gi"}}, nodeBudget={"localDisk": "1Gi"})
    )

    assert found.local_disk_capacity is None
    assert found.source_of("localDisk.capacity") == "built-in"


def test_the_node_budget_is_the_last_limit() -> None:
    found = effective(
        namespaced(hostMemory={"capacity": "64Gi"}), cluster(nodeBudget={"hostMemory": "8Gi"})
    )

    assert found.host_memory_capacity == 8 * 2**30
    assert found.source_of("hostMemory.capacity") == "ClusterKVOffloadPolicy/default#nodeBudget"


def test_of_budgets_each_field_comes_from_the_first_policy_that_sets_it() -> None:
    found = node_budget(
        policies(
            cluster("a", nodeBudget={"hostMemory": "8Gi", "localDisk": "1Ti"}),
            cluster("b", priority=1, nodeBudget={"hostMemory": "16Gi"}),
            cluster(
                "x",
                priority=2,
                nodeSelector={"matchLabels": {"size": "x"}},
                nodeBudget={"hostMemory": "1Gi"},
            ),
        ),
        NODE,
    )

    assert found.host_memory == 16 * 2**30
    assert found.local_disk == 2**40
    assert found.reserved_memory is None
    assert found.sources == {
        "hostMemory": "ClusterKVOffloadPolicy/b#nodeBudget",
        "localDisk": "ClusterKVOffloadPolicy/a#nodeBudget",
    }
    model = found.to_model()
    assert model is not None
    assert model.document() == {"hostMemory": "16Gi", "localDisk": "1Ti"}


def test_no_budget_is_no_budget() -> None:
    assert node_budget(PolicySet(), NODE).to_model() is None


def test_a_limit_below_the_policys_minimum_lowers_the_minimum() -> None:
    found = effective(
        namespaced(load={"minTokens": 256}), cluster(limits={"load": {"maxTokens": 100}})
    )

    assert found.load.min_tokens == 100
    source = found.field_source("load.minTokens")
    assert source.source == "ClusterKVOffloadPolicy/default#limits"
    assert (source.clamped_from, source.clamped_source) == ("256", "KVOffloadPolicy/team-a/chat")


def test_what_is_no_ceiling_is_not_cut() -> None:
    found = effective(
        namespaced(load={"minTokens": 256}, store={"scope": "PromptAndOutput", "minReuseCount": 9}),
        cluster(
            limits={"load": {"minTokens": 1}, "store": {"scope": "PromptOnly", "minReuseCount": 1}}
        ),
    )

    assert found.load.min_tokens == 256
    assert found.store.scope == "PromptAndOutput"
    assert found.store.min_reuse_count == 9


def test_bytes_count_against_the_policy_that_wins_else_the_namespace() -> None:
    assert effective(namespaced()).bucket == "KVOffloadPolicy/team-a/chat"
    inherited = effective(cluster(defaults={"load": {"maxTokens": 9}}))
    assert inherited.bucket == "Namespace/team-a"
    assert inherited.source == "ClusterKVOffloadPolicy/default"


def test_a_dry_run_shows_what_the_policy_would_do() -> None:
    trial = namespaced(mode="DryRun", load={"maxTokens": 9})
    all_policies = policies(trial, cluster(limits={"load": {"maxTokens": 8}}))

    found = compile_dry_run(all_policies, trial, pod(), NODE)

    assert found.load.max_tokens == 8
    assert found.source == "KVOffloadPolicy/team-a/chat"


def test_a_pod_without_an_entry_may_do_nothing() -> None:
    assert NOTHING.load.max_tokens == 0
    assert NOTHING.store.max_tokens == 0
    assert NOTHING.host_memory_capacity == 0
    assert NOTHING.local_disk_capacity is None
    assert {NOTHING.source_of(rule.path) for rule in FIELDS} == {"no-entry"}


def test_an_unknown_field_has_no_source() -> None:
    with pytest.raises(KeyError):
        NOTHING.source_of("load.maxTokenz")


def _tables() -> list[dict[str, tuple[str, ...]]]:
    """Return the tables of the page, each as rows by field."""
    tables: list[dict[str, tuple[str, ...]]] = []
    for line in PAGE.read_text().splitlines():
        if not line.startswith("|"):
            continue
        cells = tuple(cell.strip().strip("`") for cell in line.strip("|").split("|"))
        if cells[0] == "Field":
            tables.append({})
        elif not cells[0].startswith("-"):
            tables[-1][cells[0]] = cells[1:]
    return tables


def _row(found: Effective, path: str) -> tuple[str, ...]:
    source = found.field_source(path)
    value = text_of(RULE_OF[path], found.value(path))
    return value, source.source, source.clamped_from, source.clamped_source


def test_the_worked_example_of_the_documentation_is_true() -> None:
    block = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    documents = list(yaml.safe_load_all(block[1]))
    all_policies = PolicySet.of(
        namespaced=[
            KVOffloadPolicy.parse(item) for item in documents if item["kind"] == "KVOffloadPolicy"
        ],
        cluster=[
            ClusterKVOffloadPolicy.parse(item)
            for item in documents
            if item["kind"] == "ClusterKVOffloadPolicy"
        ],
    )
    compiled, requested = _tables()

    found = resolution.compile(
        all_policies, pod(app="vllm"), NodeView(name=NODE.name, labels={"size": "small"})
    )
    request = {
        "max_load_tokens": 1000,
        "max_offload_tokens": "8",
        "kv_load_tiers": [{"medium": "CPU"}],
    }
    asked = tighten(found, request).effective

    assert list(compiled) == [rule.path for rule in FIELDS]
    assert {path: _row(found, path) for path in compiled} == compiled
    assert {path: _row(asked, path) for path in requested} == requested

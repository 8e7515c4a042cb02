"""The DaemonSet of a pool, and what is done about those that exist."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvoffload_operator.daemonset import render
from kvoffload_operator.pools import INTENT_ANNOTATION, AgentsConfig, PoolsError, parse_config
from kvoffload_operator.reconcile.agents import Remove, Write, decide
from kvoffload_operator.reconcile.diff import contains, differences, project

OWNER = {"name": "kvoffload-agents", "namespace": "agents", "uid": "cm-uid"}
POOL: dict[str, Any] = {
    "name": "gpu",
    "nodeSelector": {"gpu": "yes"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "8Gi"}},
}


def config(*pools: dict[str, Any], **more: Any) -> AgentsConfig:
    document = {"image": "agent:1", "pools": list(pools or (POOL,)), **more}
    return parse_config({"data": {"agents.yaml": yaml.safe_dump(document)}})


def rendered(**more: Any) -> dict[str, Any]:
    made = config(POOL, **more)
    return dict(render(config=made, pool=made.pools[0], owner=OWNER))


def container(body: Mapping[str, Any]) -> dict[str, Any]:
    [found] = [
        item for item in body["spec"]["template"]["spec"]["containers"] if item["name"] == "agent"
    ]
    return dict(found)


def live_after(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the server keeps, with defaults of its own."""
    live = copy.deepcopy(dict(body))
    live["metadata"]["uid"] = "ds-uid"
    live["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
    live["spec"]["template"]["spec"]["containers"][0]["terminationMessagePath"] = "/dev/x"
    return live


def test_what_an_agent_may_use_is_what_it_requests() -> None:
    resources = container(rendered())["resources"]

    assert resources["limits"]["memory"] == resources["requests"]["memory"] == "8Gi"
    assert resources["requests"]["cpu"] == "100m"


def test_the_agent_is_nobody_and_its_root_read_only() -> None:
    body = rendered()
    security = container(body)["securityContext"]

    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] > 0
    assert security["capabilities"] == {"drop": ["ALL"]}
    pod = body["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    for item in (*pod["containers"], *pod["initContainers"]):
        assert item["securityContext"]["readOnlyRootFilesystem"] is True
        assert item["securityContext"]["allowPrivilegeEscalation"] is False
        assert "ALL" in item["securityContext"]["capabilities"]["drop"]
    paths = {item["hostPath"]["path"] for item in pod["volumes"] if "hostPath" in item}
    assert {"/run/kvoffload", "/var/lib/kvoffload"} <= paths
    assert not {"/", "/dev", "/run", "/var/run"} & paths


def test_the_config_map_owns_it_and_the_pool_says_where_it_runs() -> None:
    body = rendered()

    [owner] = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ConfigMap", "cm-uid")
    pod = body["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == POOL["nodeSelector"]
    assert pod["tolerations"] == POOL["tolerations"]
    selector = body["spec"]["selector"]["matchLabels"]
    assert selector.items() <= body["spec"]["template"]["metadata"]["labels"].items()


def test_equal_configurations_render_equal_bodies_and_others_another_intent() -> None:
    assert json.dumps(rendered()) == json.dumps(rendered())
    other = rendered(image="agent:2")

    annotation = "annotations"
    assert (
        other["metadata"][annotation][INTENT_ANNOTATION]
        != rendered()["metadata"][annotation][INTENT_ANNOTATION]
    )


def test_a_bound_on_chunks_is_passed_on_only_if_set() -> None:
    assert not any("--host-memory" in item for item in container(rendered())["args"])
    made = config({**POOL, "hostMemory": "4Gi"})
    body = render(config=made, pool=made.pools[0], owner=OWNER)
    assert "--host-memory=4Gi" in container(body)["args"]


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        ([POOL, POOL], "same name: gpu"),
        ([{**POOL, "hostMemory": "8Gi"}], "leaves less than 256 MiB"),
        ([{**POOL, "hostMemory": "30GB"}], "pool gpu"),
        ([{**POOL, "resources": {"limits": {}}}], "limits.memory must be set"),
        ([{**POOL, "name": "GPU"}], "pools.0.name"),
        ([{"name": "gpu", "resources": POOL["resources"]}], "pools.0.nodeSelector"),
    ],
)
def test_a_wrong_pool_is_named(pools: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(PoolsError, match=said):
        config(*pools)


@pytest.mark.parametrize("data", [None, {}, {"agents.yaml": "["}, {"agents.yaml": "just text"}])
def test_what_is_no_configuration_is_refused(data: Any) -> None:
    with pytest.raises(PoolsError):
        parse_config({"data": data} if data is not None else {})


def test_a_newer_chart_may_say_more() -> None:
    assert config({**POOL, "future": 1}, also="new").pools[0].name == "gpu"


def test_a_missing_daemonset_is_made_and_one_as_rendered_left_alone() -> None:
    [action] = decide(config=config(), owner=OWNER, live={}, settled={})
    assert isinstance(action, Write)
    assert action.new

    live = {"kvoffload-agent-gpu": live_after(action.body)}
    assert decide(config=config(), owner=OWNER, live=live, settled={}) == []


def test_a_restart_by_kubectl_and_annotations_of_others_are_respected() -> None:
    live = live_after(rendered())
    live["metadata"]["annotations"]["someone"] = "else"
    template = live["spec"]["template"]["metadata"]
    template["annotations"] = {"kubectl.kubernetes.io/restartedAt": "now"}

    assert (
        decide(config=config(), owner=OWNER, live={"kvoffload-agent-gpu": live}, settled={}) == []
    )


def test_what_somebody_changed_is_put_right_and_named() -> None:
    live = live_after(rendered())
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "x:y"
    [action] = decide(config=config(), owner=OWNER, live={"kvoffload-agent-gpu": live}, settled={})

    assert isinstance(action, Write)
    assert action.drifted == ("spec.template.spec.containers[0].image",)


def test_a_change_of_our_own_is_no_drift() -> None:
    live = {"kvoffload-agent-gpu": live_after(rendered())}
    [action] = decide(config=config(POOL, image="agent:2"), owner=OWNER, live=live, settled={})

    assert isinstance(action, Write)
    assert action.drifted == ()


def test_values_that_the_server_writes_in_another_form_are_not_written_again() -> None:
    body = rendered()
    live = live_after(body)
    live["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = "8192Mi"
    name = "kvoffload-agent-gpu"
    settled = {name: project(live, body)}

    assert decide(config=config(), owner=OWNER, live={name: live}, settled=settled) == []
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "x:y"
    assert decide(config=config(), owner=OWNER, live={name: live}, settled=settled)


def test_a_pool_that_is_gone_takes_its_daemonset_and_no_other() -> None:
    live = {"kvoffload-agent-gpu": live_after(rendered()), "foreign": live_after(rendered())}
    live["foreign"]["metadata"]["ownerReferences"] = []
    live["foreign"]["metadata"]["name"] = "foreign"
    none = parse_config({"data": {"agents.yaml": "{image: a, pools: []}"}})

    actions = decide(config=none, owner=OWNER, live=live, settled={})
    assert actions == [Remove(name="kvoffload-agent-gpu", uid="ds-uid")]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(values, values)
def test_differences_are_named_exactly_where_there_are_any(live: Any, ours: Any) -> None:
    assert bool(differences(live, ours)) != contains(live, ours)


@given(values, values)
def test_what_is_projected_is_all_that_a_comparison_sees(live: Any, ours: Any) -> None:
    if contains(live, ours):
        assert contains(project(live, ours), ours)


def test_the_device_plugin_is_root_without_rights_and_sees_no_chunk() -> None:
    without = rendered()["spec"]["template"]["spec"]
    pod = rendered(devicePlugin=True, socketDirectory="/srv/kvo")["spec"]["template"]["spec"]

    assert [item["name"] for item in without["containers"]] == ["agent"]
    [agent, plugin] = pod["containers"]
    security = plugin["securityContext"]
    assert security["runAsUser"] == 0
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    # Kubelet mounts a folder of the node, under whatever name the agent's own container has it.
    assert "--host-directory=/srv/kvo" in plugin["args"]
    assert [mount.get("readOnly", False) for mount in plugin["volumeMounts"]] == [True, False]
    kubelet = "/var/lib/kubelet/device-plugins"
    assert plugin["volumeMounts"][1]["mountPath"] == kubelet
    assert kubelet not in [mount["mountPath"] for mount in agent["volumeMounts"]]
    assert {"name": "kubelet", "hostPath": {"path": kubelet, "type": "DirectoryOrCreate"}} in pod[
        "volumes"
    ]

"""The chart without a cluster: lint, determinism, versions, documented values, least privilege."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kubernetes_validate import validate
from tests.harness.helm import AGENTS, CHART, EVERYTHING, NAMESPACE, Helm

from kvoffload_operator.daemonset import render
from kvoffload_operator.pools import parse_config

VERSIONS = [f"1.{minor}.0" for minor in range(30, 38)]
Json = dict[str, Any]


def of_kind(objects: list[Json], kind: str) -> list[Json]:
    return [item for item in objects if item["kind"] == kind]


def test_lint_finds_nothing(helm: Helm) -> None:
    output = helm("lint", "--strict", str(CHART))

    assert "0 chart(s) failed" in output
    assert "WARNING" not in output


def test_two_renders_are_equal(helm: Helm) -> None:
    assert helm.template() == helm.template()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_supported_version_gets_what_it_serves(helm: Helm, version: str) -> None:
    objects = helm.rendered("--kube-version", version, *EVERYTHING)
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]

    assert len(names) == len(set(names))
    assert ("Deployment", "kvoffload-operator") in names
    assert ("ValidatingAdmissionPolicy", "kvoffload-agent-node") in names
    served = version >= "1.36"
    assert (("MutatingAdmissionPolicy", "kvoffload-engines") in names) == served


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_rendered_is_valid_for_the_version_in_every_field(helm: Helm, version: str) -> None:
    objects = helm.rendered("--kube-version", version, *EVERYTHING)
    [config] = [item for item in of_kind(objects, "ConfigMap") if "agents.yaml" in item["data"]]
    config["metadata"]["uid"] = "given-by-the-server"
    agents = parse_config(config)
    objects += [
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            **render(config=agents, pool=pool, owner=config["metadata"]),
        }
        for pool in agents.pools
    ]

    own = {"kvoffload.io", "monitoring.coreos.com"}
    checked = [item for item in objects if item["apiVersion"].split("/")[0] not in own]
    assert len(checked) > 10
    for item in checked:
        assert validate(item, version, strict=True) == version.removesuffix(".0")


def test_an_older_cluster_is_refused(helm: Helm) -> None:
    with pytest.raises(Exception, match="kubeVersion"):
        helm.template("--kube-version", "1.29.0")


def test_nothing_of_the_prometheus_operator_or_cert_manager_is_needed(helm: Helm) -> None:
    groups = {item["apiVersion"].split("/")[0] for item in helm.rendered()}
    assert not {"monitoring.coreos.com", "cert-manager.io"} & groups

    enabled = helm.rendered("--set", "serviceMonitor.enabled=true")
    assert of_kind(enabled, "ServiceMonitor")


def test_the_operators_pod_passes_the_restricted_standard(helm: Helm) -> None:
    [deployment] = of_kind(helm.rendered(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]

    assert deployment["spec"]["replicas"] == 2
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert all("hostPath" not in volume for volume in pod["volumes"])
    for container in pod["containers"]:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {"startupProbe", "livenessProbe", "readinessProbe", "resources"} <= container.keys()


def test_every_image_can_be_given_by_digest(helm: Helm) -> None:
    digest = "sha256:" + "a" * 64
    arguments = (
        "--set", f"operator.image.digest={digest}", "--set", f"agent.image.digest={digest}",
    )  # fmt: skip
    images = re.findall(r"\bimage: (\S+)", helm.template(*arguments))

    assert len(images) >= 2
    assert all(image.endswith(f"@{digest}") for image in images)


def test_rights_are_those_of_the_shipped_manifests_in_the_releases_namespaces(helm: Helm) -> None:
    objects = helm.rendered()
    shipped = [
        document
        for file in (CHART / "files" / "rbac").glob("*.yaml")
        for document in yaml.safe_load_all(file.read_text())
    ]
    ours = {
        (item["kind"], item["metadata"]["name"]): item.get("rules") or item.get("roleRef")
        for item in objects
        if item["kind"] in {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
    }
    for document in shipped:
        if "rules" in document or "roleRef" in document:
            key = (document["kind"], document["metadata"]["name"])
            assert ours[key] == document.get("rules") or ours[key] == document.get("roleRef")
    homes = {
        (subject["name"], subject["namespace"])
        for item in objects
        for subject in item.get("subjects", ())
    }
    assert homes == {("kvoffload-operator", NAMESPACE), ("kvoffload-agent", AGENTS)}
    for rules in ours.values():
        assert "*" not in json.dumps(rules)
        assert "secrets" not in json.dumps(rules)


def leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value and path not in FREE:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from leaves(value[0], f"{path}[]")
    else:
        yield path


def schema_leaves(schema: Json, path: str = "") -> Iterator[str]:
    if schema.get("properties") and path not in FREE:
        for key, inner in schema["properties"].items():
            yield from schema_leaves(inner, f"{path}.{key}" if path else key)
    elif (items := schema.get("items", {})).get("description"):
        yield from schema_leaves(items, f"{path}[]")
    else:
        assert schema["description"], path
        yield path


# Kubernetes's own shapes, documented as a whole.
FREE = {"operator.resources", "agent.pools[].resources", "agent.pools[].nodeSelector"}


def test_every_value_is_in_the_schema_and_described() -> None:
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = set(leaves(yaml.safe_load(text)))

    assert found == set(schema_leaves(schema))
    keys = [line for line in text.splitlines() if re.match(r"^\s*(- )?[A-Za-z]\w*: ?\S", line)]
    lines = text.splitlines()
    nested = {"requests:", "limits:"}
    for key in keys:
        if key.split()[0] in nested:
            continue
        above = lines[lines.index(key) - 1] if lines.count(key) == 1 else "# --"
        assert "# --" in above, f"{key!r} is not described above it"


def test_objects_of_the_schema_take_no_other_keys() -> None:
    def walk(schema: Any) -> Iterator[Json]:
        if isinstance(schema, dict):
            if schema.get("type") == "object":
                yield schema
            for inner in schema.values():
                yield from walk(inner)

    schema = json.loads((CHART / "values.schema.json").read_text())
    open_ones = [item for item in walk(schema) if "additionalProperties" not in item]
    assert open_ones == [schema["properties"]["global"]]


def test_the_default_policy_says_what_the_values_say_and_no_more(helm: Helm) -> None:
    [policy] = of_kind(helm.rendered(), "ClusterKVOffloadPolicy")
    assert policy["spec"] == {"defaults": {"load": {"timeoutSeconds": 5}}}

    [policy] = of_kind(
        helm.rendered(
            values={
                "clusterDefaults": {"load": {"maxTokens": 2000000000, "minTokens": 0, "tiers": []}},
                "clusterLimits": {"hostMemory": {"capacity": "128Gi"}},
                "nodeBudget": {"hostMemory": "512Gi"},
            }
        ),
        "ClusterKVOffloadPolicy",
    )
    assert policy["spec"] == {
        "defaults": {
            "load": {"maxTokens": 2000000000, "minTokens": 0, "timeoutSeconds": 5, "tiers": []}
        },
        "limits": {"hostMemory": {"capacity": "128Gi"}},
        "nodeBudget": {"hostMemory": "512Gi"},
    }
    assert policy["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_without_any_value_there_is_no_default_policy(helm: Helm) -> None:
    objects = helm.rendered("--set", "clusterDefaults.load.timeoutSeconds=null")
    assert not of_kind(objects, "ClusterKVOffloadPolicy")


def test_crds_stay_at_uninstallation_unless_told_otherwise(helm: Helm) -> None:
    kept = of_kind(helm.rendered(), "CustomResourceDefinition")
    assert len(kept) == 3
    for item in kept:
        assert item["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    for item in of_kind(helm.rendered("--set", "crds.keep=false"), "CustomResourceDefinition"):
        assert "annotations" not in item["metadata"]
    assert not of_kind(helm.rendered("--set", "crds.install=false"), "CustomResourceDefinition")


def test_the_config_map_of_the_pools_holds_valid_yaml(helm: Helm) -> None:
    [config] = of_kind(helm.rendered(), "ConfigMap")
    assert config["metadata"]["namespace"] == AGENTS
    pools = yaml.safe_load(config["data"]["agents.yaml"])["pools"]
    assert [pool["name"] for pool in pools] == ["default"]

    [config] = of_kind(helm.rendered(values={"agent": {"pools": []}}), "ConfigMap")
    assert yaml.safe_load(config["data"]["agents.yaml"])["pools"] == []

"""A kind can be used as soon as its CRD was applied."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml
from tests.cluster.api import ApiError, JsonObject
from tests.cluster.controlplane import ControlPlane, KubectlError
from tests.cluster.fixtures import apply_crds

pytestmark = pytest.mark.cluster
CRD: JsonObject = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "samples.test.example"},
    "spec": {
        "group": "test.example",
        "scope": "Cluster",
        "names": {"plural": "samples", "singular": "sample", "kind": "Sample"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"size": {"type": "integer"}},
                                "x-kubernetes-validations": [
                                    {"rule": "self.size < 10", "message": "size is below 10"}
                                ],
                            }
                        },
                    }
                },
            }
        ],
    },
}


def sample(*, name: str, size: int) -> JsonObject:
    return {
        "apiVersion": "test.example/v1",
        "kind": "Sample",
        "metadata": {"name": name},
        "spec": {"size": size},
    }


def test_an_applied_kind_takes_objects_at_once_and_checks_its_rules(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "samples.yaml").write_text(yaml.safe_dump(CRD))
    apply_crds(control_plane, directory=tmp_path)
    path = "/apis/test.example/v1/samples"
    control_plane.request(method="POST", path=path, body=sample(name="small", size=1))
    with pytest.raises(ApiError, match=r"422 Invalid.*size is below 10"):
        control_plane.request(method="POST", path=path, body=sample(name="big", size=10))


def test_an_invalid_crd_is_refused_with_the_reason(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    broken = copy.deepcopy(CRD)
    broken["metadata"]["name"] = "other.test.example"
    (tmp_path / "samples.yaml").write_text(yaml.safe_dump(broken))
    with pytest.raises(KubectlError, match=r"metadata\.name: Invalid value"):
        apply_crds(control_plane, directory=tmp_path)

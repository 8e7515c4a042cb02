"""What the real API server takes and refuses, without any operator running."""

from __future__ import annotations

import json
import re

import pytest
from tests.cluster.controlplane import ControlPlane
from tests.unit.api.cases import REFUSED, TAKEN, Case

pytestmark = pytest.mark.cluster


def apply(plane: ControlPlane, case: Case, namespace: str) -> tuple[int, str]:
    """Dry-run on the server: all of validation, and nothing is left behind."""
    done = plane.kubectl(
        "create",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
        input=json.dumps(case.document(namespace=namespace)),
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.usefixtures("crds")
@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case.name)
def test_taken(control_plane: ControlPlane, namespace: str, case: Case) -> None:
    code, output = apply(control_plane, case, namespace)

    assert code == 0, output


@pytest.mark.usefixtures("crds")
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refused_with_what_may_be_done(
    control_plane: ControlPlane, namespace: str, case: Case
) -> None:
    code, output = apply(control_plane, case, namespace)

    assert code != 0
    assert case.refused
    assert case.refused in re.sub(r"\\+\"", '"', output)


@pytest.mark.usefixtures("crds")
def test_an_unknown_field_is_dropped_where_the_client_does_not_ask_for_strictness(
    control_plane: ControlPlane, namespace: str
) -> None:
    case = next(case for case in REFUSED if case.name == "an unknown field")
    document = case.document(namespace=namespace)
    document["spec"]["load"]["maxTokens"] = 5

    stored = control_plane.request(
        method="POST",
        path=f"/apis/kvoffload.io/v1alpha1/namespaces/{namespace}/kvoffloadpolicies",
        body=document,
    )

    assert stored["spec"]["load"] == {"maxTokens": 5}

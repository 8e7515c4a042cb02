"""An agent that cannot use the API server says so once, with the reason and what to check."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from kvoffload_agent.kube.client import KubeError
from kvoffload_agent.kube.outage import Outage, hint_for

SERVER = "https://192.0.2.1:6443"


def test_each_kind_of_failure_is_warned_about_once_and_its_end_told() -> None:
    outage = Outage(server=SERVER)
    with capture_logs() as lines:
        for _ in range(3):
            outage.failed(KubeError("no answer from the API server"))
        outage.failed(KubeError("Unauthorized", status=401))
        outage.failed(KubeError("Unauthorized", status=401))
        assert outage.reason.startswith(f"{SERVER}: Unauthorized; the credentials")
        outage.over()
        outage.over()

    assert [(line["log_level"], line["server"]) for line in lines] == [
        ("warning", SERVER),
        ("warning", SERVER),
        ("info", SERVER),
    ]
    assert outage.reason == ""


def test_an_expired_watch_is_no_outage() -> None:
    outage = Outage(server=SERVER)
    with capture_logs() as lines:
        outage.failed(KubeError("too old resource version", status=410))
    assert (lines, outage.reason) == ([], "")


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (0, "address"),
        (401, "credentials"),
        (403, "rbac"),
        (404, "crds/generated"),
        (500, "again"),
        (599, "again"),
    ],
)
def test_the_hint_names_who_must_act(status: int, word: str) -> None:
    assert word in hint_for(KubeError("refused", status=status))

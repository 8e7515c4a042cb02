"""The table of docs/concepts/request-load-control.md holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.docs.tables import number, table
from tests.unit.reports.policy import POLICY, resolved
from tests.unit.scheduler.builders import World, full

ROWS = table("concepts/request-load-control.md", "`load.maxTokens`", holds="Loads")
POLICY_CAP, OVERRIDE, ASKED = (
    "`load.maxTokens` of the policy",
    "`requestOverride`",
    "`max_load_tokens`",
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row.values()))
def test_policy_and_request_give_what_is_documented(row: dict[str, str]) -> None:
    spec: dict[str, Any] = {}
    if row[POLICY_CAP]:
        spec["load"] = {"maxTokens": number(row[POLICY_CAP])}
    if row[OVERRIDE]:
        spec["requestOverride"] = row[OVERRIDE]
    asked = {"max_load_tokens": json.loads(row[ASKED])} if row[ASKED] else {}
    found = resolved(asked, **spec)
    world = World(full(16), tokens=64)
    world.put_all()
    result = world.ask(found.caps)
    source = found.caps.sources.get(result.limited_by, "")
    assert (result.tokens, source) == (
        int(row["Loads"]),
        {"": "", "request": "request", "policy": POLICY}[row["Shortened by"]],
    )


def test_the_largest_cap_is_as_documented() -> None:
    assert resolved({"max_load_tokens": 2_147_483_646}).caps.max_load_tokens == 2_147_483_646
    assert resolved({"max_load_tokens": 2_147_483_647}).caps.max_load_tokens is None

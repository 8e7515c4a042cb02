"""The worked examples of docs/concepts/scheduler.md hold."""

from __future__ import annotations

import re

import pytest
from tests.unit.docs.tables import number, table
from tests.unit.scheduler.builders import StubTier, World, full, mamba, sliding

from kvoffload_agent.scheduler.types import GroupConfig, RequestCaps

PAGE = "concepts/scheduler.md"
LOADS = table(PAGE, "Groups", holds="Loads")
STORES = table(PAGE, "Groups", holds="Stores")


def group(name: str) -> GroupConfig:
    match = re.fullmatch(r"(E?)([FWM])(\d+)(?:/(\d+))?", name)
    assert match is not None, name
    draft, kind, block, window = match.groups()
    if kind == "M":
        return mamba(int(block))
    if kind == "W":
        return sliding(int(block), int(window), eagle=bool(draft))
    return full(int(block), eagle=bool(draft))


def name_of(row: dict[str, str]) -> str:
    return " ".join(cell.replace(" ", "+") or "-" for cell in row.values())


def test_there_are_examples() -> None:
    assert len(LOADS) >= 35
    assert len(STORES) >= 8


@pytest.mark.parametrize("row", LOADS, ids=name_of)
def test_a_load_is_as_documented(row: dict[str, str]) -> None:
    world = World(
        *map(group, row["Groups"].split()),
        tokens=int(row["Prompt"]),
        per_chunk=int(row["Chunk"]),
        per_hash=int(row["Hash"]),
        tiers=[StubTier()],
    )
    if row["There"] == "all":
        world.put_all()
    else:
        world.put_chunks(dict(enumerate(row["There"].split(", "))))
    result = world.ask(
        RequestCaps(max_load_tokens=number(row["Cap"])),
        local=int(row["Local"]),
        max_new=number(row["New at most"]),
    )
    assert result.tokens == (None if row["Loads"] == "ask later" else int(row["Loads"]))


@pytest.mark.parametrize("row", STORES, ids=name_of)
def test_a_store_is_as_documented(row: dict[str, str]) -> None:
    groups = [group(name) for name in row["Groups"].split()]
    world = World(
        *groups,
        tokens=int(row["Prompt"]),
        per_chunk=int(row["Chunk"]),
        retention=number(row["Retention"]),
    )
    handle = world.request(RequestCaps(max_offload_tokens=number(row["Store cap"])))
    plans = world.run(handle, int(row["Prompt"])).stores
    assert world.chunks_of(plans, len(groups) - 1) == [int(at) for at in row["Stores"].split()]

"""Groups are visited until they agree: who is asked again, and what a draft model has to prove.

Rules R4 and R5 of the specification. Chunks of 4 tokens; H is there, M is not, R is not known yet.
"""

from __future__ import annotations

import pytest
from tests.unit.scheduler.builders import StubTier, World, full, sliding

from kvoffload_agent.scheduler.types import GroupConfig, RequestCaps

F4, S4, S8, S16 = full(4), sliding(4, 4), sliding(4, 8), sliding(4, 16)
DRAFT = sliding(4, 8, eagle=True)


def world(*rows: tuple[GroupConfig, str], tokens: int | None = None, tiered: bool = True) -> World:
    size = 4 * max(len(row) for _, row in rows) + 1 if tokens is None else tokens
    made = World(*(group for group, _ in rows), tokens=size, tiers=[StubTier()] if tiered else ())
    made.put_chunks({number: row for number, (_, row) in enumerate(rows)})
    return made


def hit(*rows: tuple[GroupConfig, str], tokens: int | None = None) -> int | None:
    return world(*rows, tokens=tokens).ask().tokens


def test_a_wider_window_is_asked_again_when_a_narrower_one_shortens_the_hit() -> None:
    # The window of 16 hits at 20; shortened to 12 it would need chunk 0.
    assert hit((F4, "HHHHHH"), (S16, "MHHHHM"), (S8, "MHHMMM")) == 0
    assert hit((F4, "HHHHHH"), (S16, "HHHHHM"), (S8, "MHHMMM")) == 12


def test_the_first_window_that_shortens_a_hit_is_asked_once() -> None:
    asked = world((F4, "HHHHHH"), (F4, "HHHHHM"), (S8, "HHHHMM"), tiered=False)
    assert asked.ask().tokens == 16
    counts = [sum(group == number for group, _ in asked.pool.asked) for number in range(3)]
    assert counts == [6, 6, 5]


def test_a_group_that_was_waited_for_is_asked_again_whatever_windows_follow() -> None:
    rows = ((F4, "RHHHHH"), (S16, "HHHHHM"), (S8, "MHHMMM"))
    assert hit(*rows) is None
    assert hit((F4, "HHHHRH"), *rows[1:]) == 12


@pytest.mark.parametrize(("behind", "expected"), [("R", 12), ("M", 12), ("H", 12)])
def test_what_lies_behind_the_end_of_others_is_not_waited_for(behind: str, expected: int) -> None:
    assert hit((F4, f"HHHH{behind}H"), (S16, "HHHHHH"), (S8, "MHHMMM")) == expected


def test_a_draft_model_proves_its_end_once() -> None:
    # Its window hits at 12, one chunk less than is there; asked again it needs no other proof.
    assert hit((F4, "HHHHHH"), (DRAFT, "HHHHMM")) == 12
    assert hit((F4, "HHHHHH"), (full(4, eagle=True), "HHHHHM"), (S16, "HHHHHH")) == 16


def test_a_shorter_hit_of_another_group_has_to_be_proved_anew() -> None:
    # The draft model proves 16; the window ends at 12, which its chunk 3 proves, or does not.
    assert hit((F4, "HHHHHH"), (sliding(4, 16, eagle=True), "HHHHHM"), (S8, "MHHMMM")) == 12
    assert hit((F4, "HHHHHH"), (sliding(4, 9, eagle=True), "MHHHHM"), (S4, "MHMMMM")) == 0


def test_a_draft_models_shorter_hit_leaves_the_proofs_of_others() -> None:
    wide, narrow = sliding(4, 12, eagle=True), sliding(4, 8, eagle=True)
    assert hit((F4, "HHHHHH"), (wide, "HHHHHM"), (narrow, "HHHHMM")) == 12


def test_a_draft_models_window_is_one_chunk_more_wherever_it_is_found() -> None:
    assert hit((DRAFT, "MHHM")) == 0
    assert hit((DRAFT, "HHHM")) == 8
    assert hit((DRAFT, "MHHHM")) == 12


def test_the_window_of_a_draft_model_reaches_back_from_the_end_that_it_proves() -> None:
    # 16 tokens, of which the last is computed again: chunk 3 proves the end at 12.
    draft = sliding(4, 8, extra=1, eagle=True)
    assert hit((draft, "MHHH"), tokens=16) == 12


@pytest.mark.parametrize(
    ("first", "second", "limited_by"),
    [
        ("HHMM", "HHHH", ""),
        ("HHHH", "HHMM", ""),
        ("HHHH", "HHHH", "load.maxTokens"),
    ],
)
def test_a_miss_of_any_group_is_a_reason_and_the_cap_is_none(
    first: str, second: str, limited_by: str
) -> None:
    made = world((F4, first), (full(4), second))
    assert made.ask(RequestCaps(max_load_tokens=12)).limited_by == limited_by

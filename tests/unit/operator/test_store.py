"""What is kept of objects that a list, a watch and our own writes report in any order."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvoffload_operator.kube.lines import LineSplitter
from kvoffload_operator.kube.store import ObjectKey, Store

A = ObjectKey(namespace="", name="a")


def item(name: str, version: int, value: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "value": value}


def store() -> tuple[Store[str], list[tuple[str, str | None, str | None]]]:
    reports: list[tuple[str, str | None, str | None]] = []
    made: Store[str] = Store(
        parse=lambda body: str(body["value"]),
        changed=lambda key, old, new: reports.append((key.name, old, new)),
    )
    return made, reports


def test_the_newer_version_wins_whatever_the_order() -> None:
    kept, reports = store()
    kept.put(item("a", 5, "new"))
    kept.put(item("a", 4, "old"))

    assert kept.get(name="a") == "new"
    assert reports == [("a", None, "new")]


def test_a_complete_list_drops_what_it_lacks_but_not_what_is_newer() -> None:
    kept, reports = store()
    kept.put(item("a", 5, "x"))
    kept.put(item("b", 20, "x"))
    kept.replace([], version="10")

    assert [key.name for key in kept.all_keys()] == ["b"]
    assert ("a", "x", None) in reports


def test_a_deletion_during_a_list_is_not_undone_by_the_list() -> None:
    kept, _ = store()
    kept.put(item("a", 5))
    kept.drop(A, version="11")
    kept.replace([item("a", 5)], version="10")

    assert kept.get(name="a") is None


def test_an_object_made_again_after_a_deletion_is_kept() -> None:
    kept, _ = store()
    kept.drop(A, version="11")
    kept.put(item("a", 12, "again"))

    assert kept.get(name="a") == "again"


def test_the_answer_to_a_write_is_kept_unless_the_watch_has_passed_it() -> None:
    kept, _ = store()
    kept.put(item("a", 5, "before"))
    kept.passed("9")
    kept.absorb(item("a", 10, "written"))
    assert kept.get(name="a") == "written"
    kept.drop(A)
    kept.passed("12")
    kept.absorb(item("a", 11, "late answer"))

    assert kept.get(name="a") is None


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_lines_do_not_depend_on_how_the_stream_is_cut(data: bytes, cuts: list[int]) -> None:
    splitter = LineSplitter()
    found = []
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in itertools.pairwise(edges):
        found.extend(splitter.feed(data[start:end]))
    complete = data[: data.rfind(b"\n") + 1]

    assert found == [line for line in complete.split(b"\n") if line]

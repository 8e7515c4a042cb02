"""The report of mutation testing counts what was run, and what was not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.mutants import Mutant, changed_lines, read, summary, why_equivalent

MUTATED = """\
class Table:
    def xǁTableǁtake__mutmut_orig(
        self, count: int
    ) -> int:
        left = self.free - count
        return left

    def xǁTableǁtake__mutmut_1(
        self, count: int
    ) -> int:
        left = self.free + count
        return left
"""


def mutants(outcomes: str) -> list[Mutant]:
    names = {"k": "killed", "t": "timeout", "s": "survived", "n": "no test", "-": "not run"}
    return [
        Mutant(module="package/table.py", name=f"m{at}", outcome=names[letter])
        for at, letter in enumerate(outcomes)
    ]


def test_what_was_not_run_is_no_part_of_the_share() -> None:
    row = summary(mutants("kkkts---")).splitlines()[2]
    assert row == "| `package/table.py` | 8 | 4 (80 %) | 1 | 0 | 3 |"


def test_a_mutant_without_a_test_is_not_killed() -> None:
    assert "| 4 | 2 (50 %) | 1 | 1 | 0 |" in summary(mutants("kksn"))


def test_nothing_that_was_run_has_no_share() -> None:
    assert "| 2 | 0 | 0 | 0 | 2 |" in summary(mutants("--"))


def test_a_survivor_is_shown_as_the_line_that_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "mutants" / "package" / "table.py"
    path.parent.mkdir(parents=True)
    path.write_text(MUTATED)
    assert changed_lines(tmp_path, "package.table.xǁTableǁtake__mutmut_1") == [
        "# Table.take",
        "-left = self.free - count",
        "+left = self.free + count",
    ]


def test_results_of_a_module_that_is_no_more_are_not_counted(tmp_path: Path) -> None:
    for name in ("here.py", "gone.py"):
        meta = tmp_path / "mutants" / "package" / f"{name}.meta"
        meta.parent.mkdir(parents=True, exist_ok=True)
        meta.write_text(json.dumps({"exit_code_by_key": {f"package.{name}.x_f__mutmut_1": 1}}))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "here.py").touch()
    found = read(tmp_path, only=["package/*"])
    assert [(mutant.module, mutant.outcome) for mutant in found] == [("package/here.py", "killed")]


@pytest.mark.parametrize(
    ("before", "after", "equivalent"),
    [
        ("zip(a, b, strict=True)", "zip(a, b, strict=False)", True),
        ("zip(a, b, strict=True)", "zip(a, b, )", True),
        ("zip(a, b, strict=True)", "zip(a, strict=True)", False),
        ("np.array([at], dtype=np.int64)", "np.array([at], dtype=None)", True),
        ("np.zeros(at, dtype=np.int64)", "np.zeros(at, dtype=None)", False),
        ("np.array([at], dtype=np.int64)", "np.array([1], dtype=np.int64)", False),
        ("a < b", "a <= b", False),
    ],
)
def test_only_a_change_that_makes_no_difference_is_called_equivalent(
    *, before: str, after: str, equivalent: bool
) -> None:
    assert bool(why_equivalent(["# f", f"-{before}", f"+{after}"])) is equivalent

"""Mutation testing of what decides: scheduler, eviction, ``compile`` and ``tighten`` (mutmut).

Works in a copy under the cache folder, where packages and tests lie as mutmut expects them. Results
of functions that did not change are kept, so that a run that was ended goes on where it was, and
``--survivors`` tries again, with the tests of now, only what no test has noticed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this file is run by its path, and tools/ is a package of the root

from tools.equivalents import why_equivalent  # noqa: E402
from tools.progress import cache_directory  # noqa: E402

PACKAGES = ("agent/kvoffload_agent", "agent/kvoffload_client", "crds/kvoffload_api")
SCOPE = (
    "kvoffload_agent/scheduler/*",
    "kvoffload_agent/tiers/policy/*",
    "kvoffload_api/resolution/compiler.py",
    "kvoffload_api/resolution/request.py",
)
TESTS = ("scheduler", "tiers", "docs", "api", "reports")
# These look at files of the repository, or at a tier, that a mutant has nothing to do with.
LEFT_OUT = (
    "tests/unit/tiers/disk",
    "tests/unit/reports/test_every_row_has_one_test.py",
    "tests/unit/api/test_crds.py",
    "tests/unit/api/test_reference.py",
)
REPORT = ROOT / "docs" / "reference" / "mutants.md"
# mutmut's exit codes of a mutant's tests: https://mutmut.readthedocs.io
KILLED = {1: "killed", 3: "killed", 36: "timeout", 24: "timeout", -24: "timeout", 152: "timeout"}
SURVIVED = {0: "survived", 33: "no test", 5: "no test"}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """``outcome``: killed, timeout, survived, no test, or not run."""

    module: str
    name: str
    outcome: str


def main() -> int:
    """Run mutmut for at most some minutes, and print or write what is known by then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=SCOPE, help="globs of modules; default: all")
    parser.add_argument("--minutes", type=float, default=120.0, help="end then; go on next time")
    parser.add_argument("--children", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--survivors", action="store_true", help="test those that are not killed")
    parser.add_argument("--commit", help="test this commit; default: the working tree")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    arguments = parser.parse_args()
    folder = cache_directory() / "mutants"
    with sources(arguments.commit) as source:
        prepare(folder, source, only=arguments.only)
    # mutmut takes a survivor for settled unless it is named, though its tests may be better now.
    known = read(folder, only=arguments.only) if arguments.survivors else ()
    names = [mutant.name for mutant in known if mutant.outcome not in KILLED.values()]
    ended = run(folder, names, minutes=arguments.minutes, children=arguments.children)
    mutants = list(read(folder, only=(*SCOPE, *arguments.only)))
    if not mutants:
        print("mutmut made no mutants; its output is above", file=sys.stderr)
        return 1
    text = summary(mutants)
    print(text)
    if arguments.write:
        commit = _git("describe", "--always", arguments.commit or "--dirty")
        REPORT.write_text(report(folder, mutants, commit=commit), encoding="utf-8")
    if not ended:
        print(f"ended after {arguments.minutes:g} minutes; run it again to go on")
    return 0


@contextlib.contextmanager
def sources(commit: str | None) -> Iterator[Path]:
    """Give a folder with the working tree, or with a commit."""
    if commit is None:
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "archive.tar"
        _git("archive", "--output", str(archive), commit, "agent", "crds", "tests", "docs")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        yield Path(folder)


def prepare(folder: Path, origin: Path, *, only: Sequence[str]) -> None:
    """Copy packages, tests and docs into the folder, packages at its top, and configure mutmut."""
    folder.mkdir(parents=True, exist_ok=True)
    # mutmut's own folder must exist before Python starts, else sys.path's cache says it does not.
    (folder / "mutants").mkdir(exist_ok=True)
    # Which tests reach which function is found out anew: tests and modules may be others now.
    (folder / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)
    for source in (*PACKAGES, "tests", "docs"):
        target = folder / Path(source).name
        shutil.rmtree(target, ignore_errors=True)
        # As of now (not copy2): mutmut takes a file older than its mutants for the one they are of,
        # also where a run of other modules has put it back there as it is.
        shutil.copytree(
            origin / source,
            target,
            ignore=shutil.ignore_patterns("__pycache__"),
            copy_function=shutil.copy,
        )
    # mutmut copies over what lies there, but no test may outlive its file.
    for copied in ("tests", "docs"):
        shutil.rmtree(folder / "mutants" / copied, ignore_errors=True)
    for path in (folder / each for each in LEFT_OUT):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for each in [folder / "tests", *(folder / "tests").rglob("*")]:
        if each.is_dir() and each.name != "data":
            (each / "__init__.py").touch()
    lines = [
        "[tool.mutmut]",
        'source_paths = ["kvoffload_agent", "kvoffload_api"]',
        f"only_mutate = {json.dumps(list(only))}",
        'also_copy = ["kvoffload_client", "tests", "docs"]',
        f"pytest_add_cli_args_test_selection = {json.dumps([f'tests/unit/{t}' for t in TESTS])}",
        # A mutant that never ends is given up after this many times what its tests take.
        "timeout_multiplier = 5.0",
        "[tool.pytest.ini_options]",
        'pythonpath = ["."]',
        'addopts = ["--import-mode=importlib", "-p", "no:looptime_plugin"]',
        'asyncio_mode = "auto"',
        'markers = ["cluster: -", "cgroup: -", "long: -"]',
    ]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(folder: Path, names: Sequence[str], *, minutes: float, children: int) -> bool:
    """Run mutmut on these mutants, on all if there are none; return whether it came to its end."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "mutants"),
        "HYPOTHESIS_PROFILE": "mutants",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "mutmut", "run", "--max-children", str(children), *names],
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    try:
        process.wait(timeout=minutes * 60)
    except subprocess.TimeoutExpired:
        return False
    finally:
        for number in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(timeout=30)
    return True


def read(folder: Path, *, only: Sequence[str]) -> Iterator[Mutant]:
    """Yield what mutmut knows of the mutants of these modules."""
    base = folder / "mutants"
    for path in sorted(base.rglob("*.py.meta")):
        module = path.relative_to(base).with_suffix("")
        if not (folder / module).exists():  # the module is no more
            continue
        if not any(module.match(glob) or _below(module, glob) for glob in only):
            continue
        for name, code in json.loads(path.read_text())["exit_code_by_key"].items():
            outcome = {**KILLED, **SURVIVED}.get(code, "not run" if code is None else "killed")
            yield Mutant(module=str(module), name=name, outcome=outcome)


def _below(module: Path, glob: str) -> bool:
    return glob.endswith("/*") and str(module).startswith(glob[:-1])


def summary(mutants: Sequence[Mutant]) -> str:
    """Return a Markdown table, a row for each module."""
    rows = ["| Module | Mutants | Killed | Survived | Without a test | Not run |"]
    rows.append("|---|---|---|---|---|---|")
    modules = sorted({mutant.module for mutant in mutants})
    for module in [*modules, ""]:
        own = Counter(m.outcome for m in mutants if module in ("", m.module))
        killed = own["killed"] + own["timeout"]
        judged = own.total() - own["not run"]
        share = f" ({100 * killed / judged:.0f} %)" if judged else ""
        name = f"`{module}`" if module else "all"
        rows.append(
            f"| {name} | {own.total()} | {killed}{share} | {own['survived']} | {own['no test']}"
            f" | {own['not run']} |"
        )
    return "\n".join(rows)


def report(folder: Path, mutants: Sequence[Mutant], *, commit: str) -> str:
    """Return the page: what was run, and every survivor as the line that it changes."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    shown = [
        (mutant, changed_lines(folder, mutant.name))
        for mutant in mutants
        if mutant.outcome in SURVIVED.values()
    ]
    equivalents = Counter(reason for _, changed in shown if (reason := why_equivalent(changed)))
    killed = sum(mutant.outcome in KILLED.values() for mutant in mutants)
    judged = sum(mutant.outcome != "not run" for mutant in mutants)
    others = max(judged - equivalents.total(), 1)
    alive = [(mutant, changed) for mutant, changed in shown if not why_equivalent(changed)]
    lines = [
        "# Mutation testing",
        "",
        "`make mutants` (mutmut) changes one operator, constant or argument at a time in what",
        "decides, and runs the unit tests that reach the changed function.",
        f"This is what was run on {day} at {commit}, written by `tools/mutants.py --write`.",
        "A mutant whose tests ran into their time limit counts as killed; shares are of those run.",
        "What does not stand here as run was not run; results of unchanged functions are kept.",
        "",
        summary(mutants),
        "",
        "## Equivalent",
        "",
        "These survivors cannot be told from the original;",
        f"of the other mutants that were run, {100 * killed / others:.0f} % were killed:",
        "",
        *(f"- {count} {reason}" for reason, count in sorted(equivalents.items())),
        "",
        "## Survivors and code without a test",
        "",
        "Each is a line that a better test would hold, or a message that nothing depends on.",
    ]
    for module in sorted({mutant.module for mutant, _ in alive}):
        lines += ["", f"### `{module}`", "", "```diff"]
        for mutant, changed in alive:
            if mutant.module == module:
                lines += changed
        lines.append("```")
    return "\n".join(lines) + "\n"


def changed_lines(folder: Path, name: str) -> list[str]:
    """Return the lines that a mutant takes away and puts in, from its two functions."""
    module, _, mangled = name.rpartition(".")
    path = folder / "mutants" / f"{module.replace('.', '/')}.py"
    base = re.sub(r"__mutmut_\d+$", "", mangled)
    original, mutated = (_function(path, each) for each in (f"{base}__mutmut_orig", mangled))
    # A module that this run left out lies there as it is, without its mutants.
    lines = [f"# {base.replace('xǁ', '').replace('ǁ', '.').removeprefix('x_')}"]
    for before, after in zip(original, mutated, strict=False):
        if before != after and "__mutmut_" not in after:
            lines += [f"-{before.strip()}", f"+{after.strip()}"]
    return lines


def _function(path: Path, name: str) -> list[str]:
    """Return the lines of a function of a mutated module."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next((at for at, line in enumerate(lines) if re.match(rf" *def {name}\(", line)), None)
    if start is None:
        return []
    indent = len(lines[start]) - len(lines[start].lstrip())
    end = start + 1
    while end < len(lines) and (
        not lines[end].strip()
        or len(lines[end]) - len(lines[end].lstrip()) > indent
        or lines[end].strip().startswith(")")
    ):
        end += 1
    return lines[start:end]


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

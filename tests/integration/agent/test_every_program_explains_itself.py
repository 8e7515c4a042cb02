"""The three installed programs give help in one style, their version, and what they lack."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points, version

import pytest
from tests.integration.agent.agent import PROGRAM

EXTRA = {
    "kvoffload-agent": "agent",
    "kvoffload-operator": "operator",
    "kubectl-kvoffload": "operator",
}
# A plain install has none of the extras' packages; typer is the first that each program imports.
WITHOUT = "import sys; sys.modules[{missing!r}] = None; from {module} import {name}; {name}()"


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM.with_name(program), *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def run_without(program: str, missing: str) -> subprocess.CompletedProcess[str]:
    """Run what the installed program runs, where a module cannot be found."""
    (entry,) = entry_points(group="console_scripts", name=program)
    code = WITHOUT.format(missing=missing, module=entry.module, name=entry.attr)
    return subprocess.run(
        [sys.executable, "-c", code, "--help"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_these_are_all_the_programs() -> None:
    installed = {
        entry.name
        for entry in entry_points(group="console_scripts")
        if entry.dist is not None and entry.dist.name == "kvoffload"
    }
    assert installed == set(EXTRA)


@pytest.mark.parametrize("missing", ["typer", "aiohttp"])
@pytest.mark.parametrize(("program", "extra"), EXTRA.items())
def test_without_its_extra_a_program_names_it_in_one_line(
    program: str, extra: str, missing: str
) -> None:
    ended = run_without(program, missing)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"{program}: the module {missing} is not installed")
    assert f"pip install 'kvoffload[{extra}]'" in line


def test_a_module_of_ours_that_is_missing_is_our_fault_and_not_hidden() -> None:
    ended = run_without("kvoffload-agent", "kvoffload_agent.app")
    assert ended.returncode == 1
    assert "ModuleNotFoundError" in ended.stderr


@pytest.mark.parametrize("program", EXTRA)
def test_each_program_prints_its_version(program: str) -> None:
    ended = run(program, "version")
    assert (ended.returncode, ended.stdout) == (0, f"{version('kvoffload')}\n")


@pytest.mark.parametrize(
    ("program", "command"),
    [
        *((program, []) for program in EXTRA),
        ("kvoffload-agent", ["run"]),
        ("kvoffload-agent", ["doctor"]),
        ("kvoffload-operator", ["run"]),
        ("kubectl-kvoffload", ["explain"]),
        ("kubectl-kvoffload", ["explain", "pod"]),
    ],
)
def test_help_is_plain_text_in_80_columns(program: str, command: list[str]) -> None:
    ended = run(program, *command, "--help")
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("Usage: ")
    assert ended.stdout.isascii()
    assert max(map(len, lines)) <= 80
    assert "completion" not in ended.stdout


@pytest.mark.parametrize(
    ("program", "command", "codes"),
    [
        ("kvoffload-agent", ["run"], ["0", "1", "2", "69"]),
        ("kvoffload-agent", ["doctor"], ["0", "1", "2"]),
        ("kvoffload-operator", ["run"], ["0", "1", "2", "3"]),
        ("kubectl-kvoffload", [], ["0", "1", "2", "3"]),
    ],
)
def test_help_lists_the_exit_codes_one_a_line(
    program: str, command: list[str], codes: list[str]
) -> None:
    lines = run(program, *command, "--help").stdout.splitlines()
    after = lines[lines.index("  Exit codes:") + 1 :]
    assert [line.split()[0] for line in after[: len(codes)]] == codes


def test_the_doctor_s_help_and_answer_say_what_a_verdict_means() -> None:
    told = run("kvoffload-agent", "doctor", "--help").stdout
    for word in ("Admit ", "Shrink ", "Refuse "):
        assert f"    {word}" in told
    ended = run("kvoffload-agent", "doctor", "--bytes", "900Gi")
    assert ended.returncode == 0
    last = " ".join(ended.stdout.split())
    assert "asked: Shrink (only " in last
    assert "may be taken, limited by " in last

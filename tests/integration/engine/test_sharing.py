"""Engines of one namespace share what one of them has computed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.trace import make_request
from tests.integration.engine.conftest import Agent, Engines

ENGINE = [sys.executable, "-m", "tests.engine"]
DEADLINE_SECONDS = 120.0


def test_one_engine_loads_what_another_has_stored(agent: Agent, engines: Engines) -> None:
    first, second = engines(), engines()
    first.run([make_request("one", prefix=1, num_prompt_tokens=170)])
    assert (first.stats.stored_tokens, first.stats.loaded_tokens) == (160, 0)
    second.run([make_request("two", prefix=1, num_prompt_tokens=170)])
    assert (second.stats.loaded_tokens, second.stats.stored_tokens) == (160, 0)
    assert second.stats.loaded_bytes == 10 * second.runner.memory.block_bytes
    assert (first.stats.mismatches, second.stats.mismatches) == (0, 0)
    assert second.stats.bytes_verified > second.stats.loaded_bytes


def test_only_what_the_device_lacks_is_loaded(agent: Agent, engines: Engines) -> None:
    first, second = engines(), engines()
    first.run([make_request("one", prefix=1, num_prompt_tokens=256)])
    second.run([make_request("two", prefix=1, num_prompt_tokens=96)])
    second.run([make_request("three", prefix=1, num_prompt_tokens=256)])
    # 96 tokens load as all six blocks; then five of them are found on the device again, and the
    # sixth too, since it was computed to its last token.
    assert second.stats.gpu_hit_tokens == 96
    assert second.stats.loaded_tokens == 96 + 160
    assert second.stats.mismatches == 0


def test_chunks_of_several_blocks_are_shared_whole(agent: Agent, engines: Engines) -> None:
    first, second = engines(blocks_per_chunk=4), engines(blocks_per_chunk=4)
    first.run([make_request("one", prefix=1, num_prompt_tokens=170)])
    second.run([make_request("two", prefix=1, num_prompt_tokens=170)])
    assert (first.stats.stored_tokens, second.stats.loaded_tokens) == (128, 128)
    assert second.stats.mismatches == 0


def test_engines_of_other_models_share_nothing(agent: Agent, engines: Engines) -> None:
    first, second = engines(seed=1), engines(seed=2)
    first.run([make_request("one", prefix=1, num_prompt_tokens=170)])
    second.run([make_request("two", prefix=1, num_prompt_tokens=170)])
    assert second.stats.loaded_tokens == 0


def start(agent: Agent, stats: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [
        *ENGINE, "--socket", str(agent.socket), "--stats-file", str(stats), "--need-agent",
        "--layers", "2", "--layer-kib", "4", "--blocks", "512", "--hook-deadline-ms", "100",
        *arguments,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def last(path: Path) -> dict[str, int]:
    line: dict[str, int] = json.loads(path.read_text().splitlines()[-1])
    return line


def test_two_processes_replay_a_trace_without_a_wrong_byte(agent: Agent, tmp_path: Path) -> None:
    files = [tmp_path / "0.jsonl", tmp_path / "1.jsonl"]
    processes = [
        start(agent, path, "--requests", "160", "--shard", f"{number}/2", "--name", str(number))
        for number, path in enumerate(files)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0, errors
    for path in files:
        line = last(path)
        assert (line["requests_done"], line["mismatches"]) == (80, 0)
        assert min(line["loaded_bytes"], line["stored_bytes"], line["bytes_verified"]) > 0


def test_preemptions_and_aborts_leave_no_wrong_byte(agent: Agent, tmp_path: Path) -> None:
    stats = tmp_path / "stats.jsonl"
    process = start(
        agent, stats, "--requests", "160", "--blocks", "200", "--abort-every", "5",
        "--concurrency", "12",
    )  # fmt: skip
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, errors
    line = last(stats)
    assert min(line["preemptions"], line["requests_aborted"], line["loaded_tokens"]) > 0


def test_a_flipped_bit_is_found_and_ends_with_1(agent: Agent, tmp_path: Path) -> None:
    stats = tmp_path / "stats.jsonl"
    process = start(agent, stats, "--requests", "160", "--blocks", "200", "--poison")
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1
    assert "wrong bytes" in errors
    assert last(stats)["mismatches"] >= 1


def test_without_an_agent_the_engine_computes_everything(tmp_path: Path) -> None:
    stats = tmp_path / "stats.jsonl"
    command = [
        *ENGINE, "--socket", str(tmp_path / "none"), "--requests", "20", "--connect-seconds", "0",
        "--layers", "1", "--layer-kib", "4", "--stats-file", str(stats),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert last(stats)["requests_done"] == 20
    assert last(stats)["loaded_tokens"] == 0


@pytest.mark.parametrize(("options", "code"), [(["--need-agent"], 2), ([], 0)])
def test_an_engine_that_needs_its_agent_says_so(
    tmp_path: Path, options: list[str], code: int
) -> None:
    command = [
        *ENGINE, "--socket", str(tmp_path / "none"), "--requests", "1", "--connect-seconds", "0",
        *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_SECONDS, check=False)
    assert done.returncode == code

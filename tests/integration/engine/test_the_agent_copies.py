"""The agent copies for engines whose KV memory is shared: same plans, same bytes, same failures."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.content import make_kv_file
from tests.engine.engine import Engine
from tests.engine.trace import make_request
from tests.integration.engine.conftest import Agent, Engines, eventually
from tests.integration.engine.test_agent_killed import STORED, again, kill_while_it_loads
from tests.integration.engine.test_sharing import DEADLINE_SECONDS, last, start

# As the engines of these tests: 256 blocks of two layers of 8 KiB.
DEVICE_BYTES = 256 * 2 * 8192


@pytest.fixture(params=[True, False], ids=["sealed memory file", "as torch shares tensors"])
def kv_file(request: pytest.FixtureRequest) -> Iterator[int]:
    fd = make_kv_file(DEVICE_BYTES, sealed=request.param)
    yield fd
    os.close(fd)


def test_what_is_stored_is_loaded_and_nothing_of_the_agent_is_mapped(
    agent: Agent, engines: Engines, kv_file: int
) -> None:
    engine = engines(kv_file=kv_file)
    assert again(engine, "stores") == 0
    assert engine.stats.stored_tokens == STORED
    assert again(engine, "loads") == STORED
    assert engine.stats.loaded_bytes == STORED // 16 * engine.runner.memory.block_bytes
    agent.policy("small", maxTokens=64)
    eventually(lambda: again(engine, "loads less") == 64, what="the cap of the policy")
    assert engine.stats.mismatches == 0
    assert "memfd:kvoffload" not in Path(f"/proc/{os.getpid()}/maps").read_text()


def test_it_shares_chunks_with_engines_that_copy_by_themselves(
    agent: Agent, engines: Engines, kv_file: int
) -> None:
    delegating, copying = engines(kv_file=kv_file), engines()
    delegating.run([make_request("one", prefix=1, num_prompt_tokens=170)])
    copying.run([make_request("two", prefix=1, num_prompt_tokens=170)])
    assert copying.stats.loaded_tokens == 160
    copying.run([make_request("three", prefix=2, num_prompt_tokens=170)])
    delegating.run([make_request("four", prefix=2, num_prompt_tokens=170)])
    assert delegating.stats.loaded_tokens == 160
    assert (delegating.stats.mismatches, copying.stats.mismatches) == (0, 0)


def test_the_agent_is_killed_while_it_loads(agent: Agent, engines: Engines, kv_file: int) -> None:
    engine = engines(kv_file=kv_file)
    kill_while_it_loads(agent, engine)
    agent.start_again()
    eventually(lambda: engine.session.ready and engine.runner.worker.ready, what="it reconnects")
    engines.wait_ready(engine)
    again(engine, "stores anew")
    assert again(engine, "loads anew") == STORED
    assert engine.stats.mismatches == 0


@pytest.mark.parametrize("how", ["sealed", "shm"])
def test_a_trace_with_preemptions_and_aborts_leaves_no_wrong_byte(
    agent: Agent, tmp_path: Path, how: str
) -> None:
    stats = tmp_path / "stats.jsonl"
    process = start(
        agent, stats, "--requests", "160", "--blocks", "200", "--abort-every", "5",
        "--concurrency", "12", "--agent-copies", how,
    )  # fmt: skip
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, errors
    line = last(stats)
    assert min(line["preemptions"], line["requests_aborted"], line["loaded_tokens"]) > 0


def test_an_engine_killed_under_the_agents_copies_gives_everything_back(
    agent: Agent, tmp_path: Path
) -> None:
    stats = tmp_path / "stats.jsonl"
    process = start(
        agent, stats, "--requests", "2000", "--blocks", "256", "--agent-copies", "sealed"
    )

    def loads() -> bool:
        text = stats.read_text() if stats.exists() else ""
        return any(json.loads(line)["loaded_tokens"] for line in text.splitlines())

    eventually(loads, what="it loads")
    process.kill()
    process.communicate(timeout=DEADLINE_SECONDS)
    eventually(lambda: not agent.state()["sessions"], what="the session's end")
    maps = Path(f"/proc/{agent.process.popen.pid}/maps")
    assert "engine-kv" not in maps.read_text()
    again_engine = start(
        agent, tmp_path / "again.jsonl", "--requests", "40", "--agent-copies", "sealed"
    )
    _, errors = again_engine.communicate(timeout=DEADLINE_SECONDS)
    assert again_engine.returncode == 0, errors


def test_memory_that_the_engine_never_touched_is_refused_in_one_line(
    agent: Agent, engines: Engines
) -> None:
    fd = make_kv_file(DEVICE_BYTES, sealed=True)
    try:
        engine: Engine = engines.unconnected(kv_file=fd)
        punch(fd, DEVICE_BYTES)
        engine.session.start()
        engine.runner.worker.start()
        eventually(lambda: "not allocated as a whole" in agent.log(), what="the refusal")
        assert not engine.runner.worker.ready
        engine.run([make_request("one", prefix=1, num_prompt_tokens=64)])
        assert engine.stats.requests_done == 1
    finally:
        os.close(fd)


def punch(fd: int, size: int) -> None:
    """Give the pages of a file back (FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE)."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(size)) == 0

"""The agent is killed: engines recompute, reconnect when it is back, and load again."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.engine.engine import Engine
from tests.engine.trace import make_request
from tests.integration.engine.conftest import Agent, Engines, eventually
from tests.integration.engine.test_sharing import DEADLINE_SECONDS, start

PROMPT = 330
STORED = 320


def again(engine: Engine, name: str) -> int:
    """Serve the same prompt on an empty device; return the tokens that were loaded."""
    before = engine.stats.loaded_tokens
    engine.pool.unregister(range(engine.options.num_blocks))
    engine.run([make_request(name, prefix=1, num_prompt_tokens=PROMPT)])
    return engine.stats.loaded_tokens - before


def kill_while_it_loads(agent: Agent, engine: Engine) -> None:
    """Kill the agent under a load of a new engine, which recomputes."""
    again(engine, "stores")
    engine.pool.unregister(range(engine.options.num_blocks))
    request = engine.add(make_request("caught", prefix=1, num_prompt_tokens=PROMPT))

    def loading() -> int:
        engine.step()
        return request.loading

    eventually(loading, what="the load begins")
    agent.process.kill()
    engine.run([])
    assert (engine.stats.requests_done, engine.stats.mismatches) == (2, 0)


def test_killed_between_requests(agent: Agent, engines: Engines) -> None:
    engine = engines()
    assert again(engine, "stores") == 0
    assert again(engine, "loads") == STORED
    agent.process.kill()
    assert again(engine, "recomputes") == 0
    assert engine.runner.worker.mapped_ranges() == []
    agent.start_again()
    eventually(lambda: engine.session.ready and engine.runner.worker.ready, what="it reconnects")
    engines.wait_ready(engine)
    assert again(engine, "stores anew") == 0
    assert again(engine, "loads anew") == STORED
    assert engine.stats.mismatches == 0


def test_killed_while_loads_are_in_flight(agent: Agent, engines: Engines) -> None:
    kill_while_it_loads(agent, engines())


def test_no_segment_of_a_killed_agent_stays_mapped(agent: Agent, engines: Engines) -> None:
    engine = engines()
    again(engine, "stores")
    agent.process.kill()
    eventually(
        lambda: "memfd:" not in Path(f"/proc/{os.getpid()}/maps").read_text(),
        what="every segment is unmapped",
    )
    assert again(engine, "recomputes") == 0


def test_killed_under_a_replaying_process(agent: Agent, tmp_path: Path) -> None:
    stats = tmp_path / "stats.jsonl"
    process = start(agent, stats, "--requests", "1000", "--blocks", "256")

    def lines() -> list[dict[str, int]]:
        text = stats.read_text() if stats.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    eventually(lambda: any(line["loaded_tokens"] for line in lines()), what="it loads")
    agent.process.kill()
    eventually(lambda: not lines()[-1]["connected"], what="it notices")
    loaded = lines()[-1]["loaded_tokens"]
    agent.start_again()
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, errors
    end = lines()[-1]
    assert end["mismatches"] == 0
    assert end["requests_done"] == 1000
    assert end["loaded_tokens"] > loaded

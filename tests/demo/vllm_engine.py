"""Act two with the real engine: vLLM on CPU, its KV cache offloaded under a kubectl-set cap."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.cluster.controlplane import ControlPlane
from tests.demo import act_two
from tests.demo.verdict import Check
from tests.harness.installation import Installation
from tests.harness.processes import all_stopped
from tests.vllm.agent import flip_signs
from tests.vllm.engine import Engine, Output
from tests.vllm.model import VOCABULARY, write_model

PROMPT_TOKENS = 900
WHOLE_BLOCKS = 896
CAP = 300
# Two blocks of 128 tokens fit a cap of 300.
CAPPED = 256
SETTLE_SECONDS = 30.0
TRANSFER = {
    "kv_connector": "KVOffloadConnector",
    "kv_connector_module_path": "kvoffload_client.vllm",
    "kv_role": "kv_both",
    # Two engines, an agent and a control plane may share two cores here.
    "kv_connector_extra_config": {"hook_deadline_ms": 500},
}


def play(console: Console, *, directory: Path, poison: bool) -> list[Check]:
    """Run the act; returns what it showed."""
    console.rule("[bold]The real engine: vLLM on CPU, a real control plane")
    with ControlPlane.start() as cluster, all_stopped([]) as processes:
        installation = Installation(cluster, directory=directory, node=act_two.NODE)
        installation.processes = processes
        act_two.prepare(console, installation)
        token = installation.engine_pod("vllm", namespace=act_two.TENANT, labels={"app": "chat"})
        console.print("starting vLLM twice, without and with the connector (about a minute)")
        model = write_model(directory / "model")
        with (
            Engine(name="plain", directory=directory, model=model) as plain,
            Engine(
                name="offloading",
                directory=directory,
                model=model,
                arguments={"kv_transfer_config": TRANSFER},
                environment={
                    "KVOFFLOAD_SOCKET": str(installation.socket),
                    "KVOFFLOAD_TOKEN_FILE": str(token),
                },
            ) as offloading,
        ):
            plain.wait_until_ready()
            offloading.wait_until_ready()
            return converse(console, installation, plain, offloading, poison=poison)


def converse(
    console: Console,
    installation: Installation,
    plain: Engine,
    offloading: Engine,
    *,
    poison: bool,
) -> list[Check]:
    """Send the prompts; show and return what was loaded and whether the tokens were right."""
    generator = random.Random(0)
    prompt = [generator.randrange(3, VOCABULARY) for _ in range(PROMPT_TOKENS)]
    expected = plain.generate(prompt)
    table = Table("step", "tokens loaded", "same tokens as without connector")
    checks: list[Check] = []

    def show(step: str, *, tokens: int, params: dict[str, object] | None = None) -> None:
        found = until_loaded(lambda: again(offloading, prompt, params or {}), tokens)
        same = found.tokens == expected.tokens
        table.add_row(step, f"{found.cached}", "yes" if same else "[red]no[/red]")
        checks.append(
            Check(
                holds=found.cached == tokens and same,
                statement=f"{step}: {found.cached} tokens loaded (expected {tokens}), "
                f"tokens {'equal' if same else 'DIFFER'}",
            )
        )

    offloading.generate(prompt)
    until_loaded(lambda: again(offloading, prompt, {}), WHOLE_BLOCKS)
    if poison:
        flip_signs(installation.agent_pid)
        console.print("poisoned: every value in the agent's memory has its sign flipped")
    show("the same prompt again, device cache reset", tokens=WHOLE_BLOCKS)
    show("the request asks for at most 300", tokens=CAPPED, params={"max_load_tokens": CAP})
    act_two.apply(installation.cluster, act_two.tenant_policy(CAP))
    show(f"kubectl apply: {act_two.TENANT_SOURCE}, cap {CAP}", tokens=CAPPED)
    for value in act_two.INVALID_VALUES:
        show(
            f"max_load_tokens {value!r} gets the policy's cap",
            tokens=CAPPED,
            params={"max_load_tokens": value},
        )
    console.print(table)
    return checks


def again(engine: Engine, prompt: list[int], params: dict[str, object]) -> Output:
    """Generate with an empty device cache: what is cached now was loaded."""
    engine.reset_device_cache()
    return engine.generate(prompt, params=params)


def until_loaded(generate: Callable[[], Output], tokens: int) -> Output:
    """Generate until so much is loaded, or the deadline passed; returns the last output."""
    until = time.monotonic() + SETTLE_SECONDS
    while (found := generate()).cached != tokens and time.monotonic() < until:
        time.sleep(0.2)
    return found

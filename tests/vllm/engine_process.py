"""One vLLM engine that does what it is told over a Unix socket, a JSON object a line.

Run by the vLLM environment's Python; ``engine.py`` is the other end. It says ``{"ready": true}``
when it is up. Requests: ``{"op": "generate", "prompts": [[...]], "max_tokens": n, "params": {}}``
answers ``{"outputs": [{"tokens": [...], "cached": n, "logprobs": [...]}]}``;
``{"op": "reset"}`` empties the device's prefix cache and answers ``{"ok": bool}``.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
from typing import Any


def main() -> None:
    """Serve until the socket closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine-arguments", default="{}", help="JSON over the ones below")
    arguments = parser.parse_args()
    end_with_this_process()

    from vllm import LLM

    engine = LLM(
        **{
            "model": arguments.model,
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "block_size": 128,
            "max_model_len": 2048,
            "max_num_seqs": 8,
            "enforce_eager": True,
            "enable_prefix_caching": True,
            "seed": 0,
            **json.loads(arguments.engine_arguments),
        }
    )
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(arguments.socket)
        with connection.makefile("rw") as stream:
            answer(stream, {"ready": True})
            for line in stream:
                answer(stream, perform(engine, json.loads(line)))


def end_with_this_process() -> None:
    """Have this process's group killed when it ends, however it ends.

    vLLM's own children outlive a parent that was killed. A shell outside the group waits for the
    end of a pipe that only this process holds open.
    """
    read, _write = os.pipe()  # the other end closes with this process and is inherited by none
    subprocess.Popen(
        ["/bin/sh", "-c", 'read _; kill -s KILL -- "-$0"', str(os.getpgrp())],
        stdin=read,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(read)


def perform(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Do one request; an exception of the engine is an answer too."""
    try:
        if request["op"] == "reset":
            return {"ok": bool(engine.reset_prefix_cache())}
        return generate(engine, request)
    except Exception as error:  # noqa: BLE001 - the test decides what an engine's failure means
        return {"error": f"{type(error).__name__}: {error}"}


def generate(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Generate greedily from token ids."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0,
        max_tokens=request["max_tokens"],
        ignore_eos=True,
        detokenize=False,
        logprobs=1,
        extra_args={"kv_transfer_params": request["params"]} if request["params"] else None,
    )
    outputs = engine.generate(
        [{"prompt_token_ids": prompt} for prompt in request["prompts"]], sampling, use_tqdm=False
    )
    return {
        "outputs": [
            {
                "tokens": list(output.outputs[0].token_ids),
                "cached": output.num_cached_tokens,
                "logprobs": [
                    entry[token].logprob
                    for token, entry in zip(
                        output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True
                    )
                ],
            }
            for output in outputs
        ]
    }


def answer(stream: Any, message: dict[str, Any]) -> None:
    """Write one line."""
    stream.write(json.dumps(message) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()

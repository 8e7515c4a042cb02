"""Replays recorded decisions of vLLM's own offload scheduler: ``python -m tests.oracle``."""

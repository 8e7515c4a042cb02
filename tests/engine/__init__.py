"""A reference engine: behaves as an inference engine does, with bytes that prove themselves.

It has a block pool with a prefix cache, chunked prefill, decode, preemption, eviction, and loads
and stores through ``kvoffload_client``. Instead of a model it writes bytes derived from the tokens
that a block holds, so that any wrong, stale or swapped byte is found.
Run it with ``python -m tests.engine --help``.
"""

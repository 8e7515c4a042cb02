"""The agent and the reference engines of the engine tests."""

from __future__ import annotations

from tests.integration.engine.conftest import agent, engines, host_memory

__all__ = ["agent", "engines", "host_memory"]

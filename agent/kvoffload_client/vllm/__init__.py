"""The connector for stock vLLM: no fork, no patch.

``--kv-transfer-config '{"kv_connector": "KVOffloadConnector", "kv_role": "kv_both",
"kv_connector_module_path": "kvoffload_client.vllm"}'``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvoffload_client.vllm.connector import KVOffloadConnector

__all__ = ["KVOffloadConnector"]


def __getattr__(name: str) -> Any:
    """Import the connector when it is asked for: what needs no vLLM is usable without it."""
    if name == "KVOffloadConnector":
        from kvoffload_client.vllm.connector import KVOffloadConnector

        return KVOffloadConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

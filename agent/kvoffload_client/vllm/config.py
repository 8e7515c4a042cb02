"""What ``kv_connector_extra_config`` may set, and where the agent is found without it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kvoffload_client.settings import (
    DEFAULT_HOOK_DEADLINE_SECONDS,
    ClientSettings,
)

# Above this a hung agent would slow every step down by more than the step itself takes.
MAX_HOOK_DEADLINE_MS = 1000.0


class ConnectorConfigError(ValueError):
    """The engine's operator set something that cannot work; one line says what and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig:
    """Settings of the connector, out of ``kv_connector_extra_config``.

    Attributes:
        socket_path: the agent's Unix socket; None: as the environment or the default says.
        token_path: file of the projected ServiceAccount token; None likewise.
        hook_deadline_ms: how long one scheduler hook waits for the agent, in milliseconds.
        blocks_per_chunk: engine blocks in one chunk, the unit of offload.
    """

    socket_path: str | None = None
    token_path: str | None = None
    hook_deadline_ms: float = DEFAULT_HOOK_DEADLINE_SECONDS * 1000
    blocks_per_chunk: int = 1

    @classmethod
    def from_extra_config(cls, extra: Mapping[str, object]) -> ConnectorConfig:
        """Read and check the mapping as the engine got it from its command line.

        Raises:
            ConnectorConfigError: a key is unknown or a value cannot be used.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(extra) - set(known))
        if unknown:
            raise ConnectorConfigError(
                f"kv_connector_extra_config has no {', '.join(unknown)}; "
                f"it may set {', '.join(known)}"
            )
        return cls(
            socket_path=_path(extra, "socket_path"),
            token_path=_path(extra, "token_path"),
            hook_deadline_ms=_milliseconds(extra),
            blocks_per_chunk=_blocks(extra),
        )

    def client_settings(
        self, vllm_config: Any, *, environ: Mapping[str, str] = os.environ
    ) -> ClientSettings:
        """Return the client's settings for an engine (``VllmConfig``)."""
        found = ClientSettings.from_environment(
            session_key=session_key(vllm_config), environ=environ
        )
        return ClientSettings(
            session_key=found.session_key,
            socket_path=self.socket_path or found.socket_path,
            token_path=self.token_path or found.token_path,
            hook_deadline_seconds=self.hook_deadline_ms / 1000,
        )


def session_key(vllm_config: Any) -> str:
    """Return the key that ties this engine's workers to its scheduler.

    Every process of an engine has the same ``VllmConfig``; its engine id is drawn at random unless
    the operator sets one, and the instance id tells apart engines that were given the same.
    """
    transfer = vllm_config.kv_transfer_config
    parts = f"{transfer.engine_id}/{vllm_config.instance_id}"
    return hashlib.sha256(parts.encode()).hexdigest()


def _path(extra: Mapping[str, object], name: str) -> str | None:
    value = extra.get(name)
    if value is None or (isinstance(value, str) and value.startswith("/")):
        return value
    raise ConnectorConfigError(f"{name} must be an absolute path, not {value!r}")


def _milliseconds(extra: Mapping[str, object]) -> float:
    value = extra.get("hook_deadline_ms", DEFAULT_HOOK_DEADLINE_SECONDS * 1000)
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 < value <= MAX_HOOK_DEADLINE_MS
    ):
        return float(value)
    raise ConnectorConfigError(
        f"hook_deadline_ms must be above 0 and at most {MAX_HOOK_DEADLINE_MS:.0f}, not {value!r}"
    )


def _blocks(extra: Mapping[str, object]) -> int:
    value = extra.get("blocks_per_chunk", 1)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ConnectorConfigError(f"blocks_per_chunk must be an integer of at least 1, not {value!r}")

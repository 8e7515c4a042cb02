"""Settings of an engine's side; never from policy (DESIGN section 4, "Two deadlines")."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# A scheduling step of a busy engine takes 10 to 50 ms; waiting at most a fraction of it keeps the
# engine's own latency when the agent is slow (DESIGN section 4).
DEFAULT_HOOK_DEADLINE_SECONDS = 0.005

SOCKET_ENV = "KVOFFLOAD_SOCKET"
TOKEN_FILE_ENV = "KVOFFLOAD_TOKEN_FILE"  # noqa: S105 - the name of a variable, not a secret

# Where the agent's device plugin mounts the socket's directory into engine pods.
DEFAULT_SOCKET_PATH = "/run/kvoffload/agent.sock"
DEFAULT_TOKEN_PATH = "/var/run/secrets/kvoffload/token"  # noqa: S105 - a path, not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How an engine process reaches the agent.

    ``session_key`` ties workers to their scheduler: choose it once per engine, unguessable
    (``secrets.token_hex(16)``), and give the same one to every process of the engine.
    ``token_path``: projected ServiceAccount token, read at every connect since the kubelet rotates
    it; a missing file means an empty token (a standalone agent asks SO_PEERCRED instead).
    """

    session_key: str
    socket_path: str = DEFAULT_SOCKET_PATH
    token_path: str = DEFAULT_TOKEN_PATH
    hook_deadline_seconds: float = DEFAULT_HOOK_DEADLINE_SECONDS

    @classmethod
    def from_environment(
        cls, *, session_key: str, environ: Mapping[str, str] = os.environ
    ) -> ClientSettings:
        """Return settings with socket and token path from the environment if it names them."""
        return cls(
            session_key=session_key,
            socket_path=environ.get(SOCKET_ENV) or DEFAULT_SOCKET_PATH,
            token_path=environ.get(TOKEN_FILE_ENV) or DEFAULT_TOKEN_PATH,
        )

    def read_token(self) -> str:
        """Return the token as it is now, ``""`` if there is none."""
        try:
            return Path(self.token_path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""

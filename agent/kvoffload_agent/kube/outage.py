"""One warning when the API server cannot be used, and one line when it can again."""

from __future__ import annotations

from http import HTTPStatus

import structlog

from kvoffload_agent.kube.client import KubeError

_log = structlog.get_logger(__name__)

_HINTS: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "the credentials are not accepted: renew the token or certificate",
    HTTPStatus.FORBIDDEN: (
        "the ServiceAccount may not read KVOffloadNodes: "
        "kubectl apply -f charts/kvoffload/files/rbac/"
    ),
    HTTPStatus.NOT_FOUND: (
        "the CRDs are not installed: kubectl apply --server-side -f crds/generated/"
    ),
}


def hint_for(error: KubeError) -> str:
    """Return what to check, by who must act."""
    if error.not_asked:
        return "check that the agent may read its credentials, and that they are still there"
    if not error.status:
        return "check the server's address, its certificate authority and the network"
    return _HINTS.get(error.status, "it is asked again until it answers")


class Outage:
    """Remembers why the API server cannot be used, so that each reason is told once."""

    def __init__(self, *, server: str) -> None:
        self._server = server
        self._kind: tuple[int, bool] | None = None
        self.reason = ""
        """``""`` while the API server answers."""

    def failed(self, error: KubeError) -> None:
        """Take a failed request; warns when an outage begins or its kind changes."""
        if error.gone:
            return  # an old watch, as it ends in normal operation
        self.reason = f"{self._server}: {error}; {hint_for(error)}"
        kind = (error.status, error.not_asked)
        if kind == self._kind:
            return
        self._kind = kind
        _log.warning(
            "the API server cannot be used, the last good configuration stays in force",
            server=self._server,
            error=str(error),
            status=error.status,
            hint=hint_for(error),
        )

    def over(self) -> None:
        """Take an answer; logs if it ends an outage."""
        if self._kind is not None:
            _log.info("the API server answers again", server=self._server)
        self._kind, self.reason = None, ""

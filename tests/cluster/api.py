"""Plain requests to a control plane's API server, and the objects that tests make with them."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.cluster.credentials import KeyPair

JsonObject = dict[str, Any]
# A test's single request; the slowest seen on a busy machine took 3 s.
REQUEST_DEADLINE_SECONDS = 30.0
# kube-controller-manager makes a namespace's ServiceAccount within 1 s on an idle machine.
CONTROLLER_DEADLINE_SECONDS = 60.0
HTTP_NOT_FOUND = 404
HTTP_ERROR = 400
MERGE_PATCH = "application/merge-patch+json"
NODE_CAPACITY = {"cpu": "16", "memory": "128Gi", "pods": "110", "ephemeral-storage": "500Gi"}


class ApiError(Exception):
    """The API server refused a request: ``status`` is HTTP's, ``reason`` and text Kubernetes's."""

    def __init__(self, *, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class ClusterApi:
    """What tests do to an API server besides kubectl."""

    def __init__(self, *, url: str, ca_file: Path, client: KeyPair) -> None:
        self.url = url
        self.ca_file = ca_file
        self._as_client = ssl.create_default_context(cafile=str(ca_file))
        self._as_client.load_cert_chain(client.certificate, client.key)
        self._anonymous = ssl.create_default_context(cafile=str(ca_file))

    def request(
        self,
        *,
        method: str,
        path: str,
        body: JsonObject | None = None,
        token: str | None = None,
        content_type: str = "application/json",
    ) -> JsonObject:
        """Send one request, as admin or as the bearer of ``token``.

        Raises:
            ApiError: the API server answered with an error.
            OSError: it did not answer.
        """
        status, text = self._exchange(
            method=method, path=path, body=body, token=token, content_type=content_type
        )
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"message": text}
        if status >= HTTP_ERROR:
            raise ApiError(
                status=status,
                reason=str(answer.get("reason", "")),
                message=str(answer.get("message", text)),
            )
        return dict(answer)

    def create_namespace(self, *, name: str) -> JsonObject:
        """Create a namespace and wait until pods can be made in it."""
        made = self.request(
            method="POST", path="/api/v1/namespaces", body={"metadata": {"name": name}}
        )
        wait_until(
            lambda: self.exists(f"/api/v1/namespaces/{name}/serviceaccounts/default"),
            what=f"default ServiceAccount of namespace {name}",
        )
        return made

    def exists(self, path: str) -> bool:
        """Return whether an object is there."""
        try:
            self.request(method="GET", path=path)
        except ApiError as error:
            if error.status != HTTP_NOT_FOUND:
                raise
            return False
        return True

    def delete(self, path: str, *, query: Mapping[str, str] | None = None) -> None:
        """Delete an object or a collection; one that is gone already is fine."""
        full = f"{path}?{urllib.parse.urlencode(query)}" if query else path
        try:
            self.request(method="DELETE", path=full)
        except ApiError as error:
            if error.status != HTTP_NOT_FOUND:
                raise

    def create_node(
        self,
        *,
        name: str,
        labels: Mapping[str, str] | None = None,
        allocatable: Mapping[str, str] | None = None,
    ) -> JsonObject:
        """Create a Node object that looks Ready; there is no kubelet behind it."""
        amounts = {**NODE_CAPACITY, **(allocatable or {})}
        self.request(
            method="POST",
            path="/api/v1/nodes",
            body={
                "metadata": {
                    "name": name,
                    "labels": {
                        "kubernetes.io/hostname": name,
                        "kubernetes.io/os": "linux",
                        **(labels or {}),
                    },
                },
                "status": {
                    "capacity": amounts,
                    "allocatable": amounts,
                    "conditions": [condition("Ready")],
                },
            },
        )
        # Admission taints every new Node as not ready; the controller that would remove it does
        # not run here, since it would also find that no kubelet sends heartbeats.
        return self.request(
            method="PATCH",
            path=f"/api/v1/nodes/{name}",
            body={"spec": {"taints": None}},
            content_type=MERGE_PATCH,
        )

    def create_pod(
        self,
        *,
        name: str,
        namespace: str,
        node: str | None = None,
        labels: Mapping[str, str] | None = None,
        service_account: str = "default",
    ) -> JsonObject:
        """Create a pod object, bound to ``node`` if given; nothing runs."""
        spec: JsonObject = {
            "serviceAccountName": service_account,
            "containers": [{"name": "main", "image": "none", "imagePullPolicy": "Never"}],
        }
        if node is not None:
            spec["nodeName"] = node
        return self.request(
            method="POST",
            path=f"/api/v1/namespaces/{namespace}/pods",
            body={"metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec},
        )

    def bind_pod(self, *, name: str, namespace: str, node: str) -> None:
        """Bind a pod to a node, as kube-scheduler would."""
        self.request(
            method="POST",
            path=f"/api/v1/namespaces/{namespace}/pods/{name}/binding",
            body={
                "metadata": {"name": name},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            },
        )

    def set_pod_status(
        self, *, name: str, namespace: str, phase: str = "Running", ready: bool = True
    ) -> JsonObject:
        """Write a pod's status, as kubelet would."""
        return self.request(
            method="PATCH",
            path=f"/api/v1/namespaces/{namespace}/pods/{name}/status",
            body={
                "status": {
                    "phase": phase,
                    "startTime": now(),
                    "conditions": [
                        condition("PodScheduled"),
                        condition("Initialized"),
                        condition("ContainersReady", holds=ready),
                        condition("Ready", holds=ready),
                    ],
                }
            },
            content_type=MERGE_PATCH,
        )

    def delete_pod(self, *, name: str, namespace: str) -> None:
        """Delete a pod at once: there is no kubelet that would confirm its end."""
        self.delete(
            f"/api/v1/namespaces/{namespace}/pods/{name}", query={"gracePeriodSeconds": "0"}
        )

    def create_token(
        self,
        *,
        namespace: str,
        service_account: str = "default",
        audience: str | None = None,
        pod: str | None = None,
        expiration_seconds: int = 3600,
    ) -> str:
        """Return a ServiceAccount token, as kubelet projects it.

        Args:
            namespace: Of the ServiceAccount and the pod.
            service_account: Its name.
            audience: Whom it is for; None: the API server itself.
            pod: The name of an existing pod that the token is bound to.
            expiration_seconds: Kubernetes wants at least 600.
        """
        spec: JsonObject = {"expirationSeconds": expiration_seconds}
        if audience is not None:
            spec["audiences"] = [audience]
        if pod is not None:
            found = self.request(method="GET", path=f"/api/v1/namespaces/{namespace}/pods/{pod}")
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod,
                "uid": found["metadata"]["uid"],
            }
        answer = self.request(
            method="POST",
            path=f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token",
            body={"spec": spec},
        )
        return str(answer["status"]["token"])

    def review_token(self, *, token: str, audience: str = "kvoffload") -> JsonObject:
        """Return TokenReview's status for a token that was presented to ``audience``."""
        answer = self.request(
            method="POST",
            path="/apis/authentication.k8s.io/v1/tokenreviews",
            body={"spec": {"token": token, "audiences": [audience]}},
        )
        return dict(answer["status"])

    def ready(self) -> bool:
        """Return whether the API server says that it is."""
        try:
            status, _ = self._exchange(method="GET", path="/readyz")
        except OSError:
            return False
        return status < HTTP_ERROR

    def _exchange(
        self,
        *,
        method: str,
        path: str,
        body: JsonObject | None = None,
        token: str | None = None,
        content_type: str = "application/json",
    ) -> tuple[int, str]:
        connection = http.client.HTTPSConnection(
            self.url.removeprefix("https://"),
            timeout=REQUEST_DEADLINE_SECONDS,
            context=self._as_client if token is None else self._anonymous,
        )
        headers = {"Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except http.client.HTTPException as error:
            raise OSError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()


def condition(kind: str, *, holds: bool = True) -> JsonObject:
    """Return a status condition that changed just now."""
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": "Test",
        "lastTransitionTime": now(),
    }


def now() -> str:
    """Return the time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def wait_until(
    holds: Callable[[], bool],
    *,
    what: str,
    deadline_seconds: float = CONTROLLER_DEADLINE_SECONDS,
) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: it did not within the deadline.
    """
    until = time.monotonic() + deadline_seconds
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {deadline_seconds:.0f} s")
        time.sleep(0.05)

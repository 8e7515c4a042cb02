"""How to reach the API server: from a kubeconfig or from inside a pod.

Tokens in files are read again for each request that finds its copy older than a minute,
because the kubelet rotates them long before they expire.
"""

import base64
import binascii
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from kvoffload_operator.kube.errors import AccessError
from kvoffload_operator.kube.execplugin import exec_credential

_POD_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The kubelet refreshes a token at 80 % of its life, which is at least ten minutes.
_TOKEN_MAX_AGE_S: Final = 60.0


class TokenSource:
    """A bearer token, read again from where it comes from when the copy is a minute old.

    Args:
        read: Returns the current token, or an empty string if requests carry none.
        clock: Monotonic seconds.
    """

    def __init__(
        self, read: Callable[[], str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._clock = clock
        self._token = ""
        self._read_at = float("-inf")

    def __call__(self) -> str:
        """Return the token.

        Raises:
            AccessError: The source cannot be read.
        """
        now = self._clock()
        if now - self._read_at > _TOKEN_MAX_AGE_S:
            try:
                self._token = self._read().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise AccessError(f"cannot read the token: {error}") from error
            # RFC 6750: visible ASCII; a header with anything else cannot be sent.
            if not all("!" <= letter <= "~" for letter in self._token):
                self._token = ""
                raise AccessError("the token has characters that no bearer token can have")
            self._read_at = now
        return self._token

    def forget(self) -> None:
        """Read the source again at the next use, after the server refused the token."""
        self._read_at = float("-inf")


@dataclass(frozen=True, kw_only=True)
class Access:
    """Where the API server is and who we are to it.

    Attributes:
        server: Base URL without a trailing slash.
        tls: Context with the cluster's CA and, if there is one, the client certificate;
            ``None`` for plain HTTP.
        token: Source of the bearer token.
        namespace: Namespace of the context or of the pod.
        user: Whose credentials these are, for messages.
    """

    server: str
    tls: ssl.SSLContext | None
    token: TokenSource
    namespace: str = "default"
    user: str = ""


def load_access(*, kubeconfig: str = "", context: str = "") -> Access:
    """Return the access that ``kubectl`` would use, or that of the pod we run in.

    Order: ``kubeconfig``, the pod's ServiceAccount, ``$KUBECONFIG``, ``~/.kube/config``.

    Args:
        kubeconfig: Path of a kubeconfig file.
        context: Name of a context in it; empty for its current context.

    Raises:
        AccessError: Nothing usable was found; the message says what was tried.
    """
    if not kubeconfig and not context and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster()
    # kubectl merges a list of files; a list is rare enough here that its first file must do.
    listed = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(kubeconfig or listed or Path.home() / ".kube" / "config")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AccessError(
            f"no access to a cluster: {path}: {error.strerror}; give --kubeconfig or set KUBECONFIG"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise AccessError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(document, dict):
        raise AccessError(f"{path} is not a kubeconfig")
    return _from_kubeconfig(document, folder=path.parent, context=context)


def _in_cluster() -> Access:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if ":" in host:
        host = f"[{host}]"
    try:
        tls = ssl.create_default_context(cafile=str(_POD_FOLDER / "ca.crt"))
        namespace = (_POD_FOLDER / "namespace").read_text(encoding="ascii").strip()
    except OSError as error:
        raise AccessError(f"the pod's ServiceAccount cannot be read: {error}") from error
    token = TokenSource(lambda: (_POD_FOLDER / "token").read_text(encoding="ascii"))
    return Access(
        server=f"https://{host}:{port}",
        tls=tls,
        token=token,
        namespace=namespace,
        user=f"the ServiceAccount of the pod, in namespace {namespace}",
    )


def _named(document: Mapping[str, Any], *, section: str, key: str, name: str) -> Mapping[str, Any]:
    for item in document.get(section) or ():
        if isinstance(item, dict) and item.get("name") == name:
            return item.get(key) or {}
    raise AccessError(f"the kubeconfig has no entry {name!r} in {section}")


def _from_kubeconfig(document: Mapping[str, Any], *, folder: Path, context: str) -> Access:
    name = context or document.get("current-context") or ""
    if not name:
        raise AccessError("the kubeconfig has no current-context: give --context")
    chosen = _named(document, section="contexts", key="context", name=name)
    cluster = _named(document, section="clusters", key="cluster", name=chosen.get("cluster", ""))
    user: Mapping[str, Any] = {}
    if chosen.get("user"):
        user = _named(document, section="users", key="user", name=chosen["user"])
    if user.get("exec"):
        user = {**user, **exec_credential(user["exec"])}
    server = str(cluster.get("server", "")).rstrip("/")
    try:
        tls = _tls(cluster=cluster, user=user, folder=folder) if server[:5] == "https" else None
    except (OSError, binascii.Error) as error:
        raise AccessError(f"the certificates of context {name!r} are unusable: {error}") from error
    return Access(
        server=server,
        tls=tls,
        token=_token(user, folder=folder),
        namespace=chosen.get("namespace") or "default",
        user=f"user {chosen.get('user') or '(none)'!r} of context {name!r}",
    )


def _token(user: Mapping[str, Any], *, folder: Path) -> TokenSource:
    if user.get("tokenFile"):
        path = folder / str(user["tokenFile"])
        return TokenSource(lambda: path.read_text(encoding="ascii"))
    if user.get("exec"):
        return TokenSource(lambda: exec_credential(user["exec"]).get("token", ""))
    token = str(user.get("token", ""))
    return TokenSource(lambda: token)


def _tls(*, cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if authority := _data(cluster, "certificate-authority", folder=folder):
        context = ssl.create_default_context(cadata=authority.decode("ascii"))
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = _data(user, "client-certificate", folder=folder)
    key = _data(user, "client-key", folder=folder)
    if certificate and key:
        # The ssl module takes a certificate from files only; this one is 0600 and gone at once.
        with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
            pem.write(certificate.rstrip() + b"\n" + key)
            pem.flush()
            context.load_cert_chain(pem.name)
    return context


def _data(section: Mapping[str, Any], field: str, *, folder: Path) -> bytes:
    if inline := section.get(f"{field}-data"):
        return base64.b64decode(inline, validate=True)
    if path := section.get(field):
        return (folder / str(path)).read_bytes()
    return b""

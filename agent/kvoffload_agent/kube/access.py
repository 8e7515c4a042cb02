"""How to reach the API server: a kubeconfig file, or the pod's own mounted credentials.

Tokens in files are read again for every request: the kubelet replaces them before they expire, and
reading a small file costs less than remembering how old the last copy is.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

POD_CREDENTIALS: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class AccessError(Exception):
    """The credentials are missing or unusable; for the person who starts the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """``server``: base URL without trailing slash. ``token`` returns ``""`` for none."""

    server: str
    tls: ssl.SSLContext | None
    token: Callable[[], str]


def in_cluster(
    *, credentials: Path = POD_CREDENTIALS, environ: Mapping[str, str] = os.environ
) -> Access:
    """Return the access of the pod's ServiceAccount.

    Raises:
        AccessError: this process is not in a pod, or its token is not mounted.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host:
        raise AccessError("--in-cluster works in a pod only: KUBERNETES_SERVICE_HOST is not set")
    address = f"[{host}]" if ":" in host else host
    try:
        tls = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
    except OSError as error:
        raise AccessError(f"the pod's CA cannot be read: {error}") from error
    return Access(
        server=f"https://{address}:{port or 443}",
        tls=tls,
        token=_token_file(credentials / "token"),
    )


def from_kubeconfig(path: Path) -> Access:
    """Return the access of a kubeconfig's current context.

    Certificates, tokens and token files are understood; exec plug-ins are for people and not here.

    Raises:
        AccessError: the file is missing, damaged, or its context is incomplete.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        context = _named(document, "contexts", document["current-context"])["context"]
        cluster = _named(document, "clusters", context["cluster"])["cluster"]
        user = _named(document, "users", context["user"])["user"]
        server = str(cluster["server"]).rstrip("/")
        tls = _tls(cluster, user, folder=path.parent) if server.startswith("https") else None
    except OSError as error:
        raise AccessError(f"kubeconfig {path}: {error}") from error
    except (
        yaml.YAMLError,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        RecursionError,
    ) as error:
        raise AccessError(f"kubeconfig {path} is damaged or incomplete: {error!r}") from error
    return Access(server=server, tls=tls, token=_token(user, folder=path.parent))


def _named(document: Mapping[str, Any], section: str, name: str) -> Mapping[str, Any]:
    for item in document[section]:
        if item["name"] == name:
            found: Mapping[str, Any] = item
            return found
    raise KeyError(f"{section} has no {name!r}")


def _token(user: Mapping[str, Any], *, folder: Path) -> Callable[[], str]:
    if file := user.get("tokenFile"):
        return _token_file(folder / str(file))
    token = str(user.get("token") or "")
    return lambda: token


def _token_file(path: Path) -> Callable[[], str]:
    def read() -> str:
        try:
            return path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AccessError(f"the token cannot be read: {error}") from error

    return read


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], *, folder: Path) -> ssl.SSLContext:
    authority = _data(cluster, "certificate-authority", folder=folder)
    context = ssl.create_default_context(cadata=authority.decode("ascii") or None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = _data(user, "client-certificate", folder=folder)
    key = _data(user, "client-key", folder=folder)
    if certificate and key:
        # The ssl module loads a certificate from a file only; this one is 0600 and gone at once.
        with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
            pem.write(certificate.rstrip() + b"\n" + key)
            pem.flush()
            context.load_cert_chain(pem.name)
    return context


def _data(section: Mapping[str, Any], field: str, *, folder: Path) -> bytes:
    if inline := section.get(f"{field}-data"):
        return base64.b64decode(inline, validate=True)
    if file := section.get(field):
        return (folder / str(file)).read_bytes()
    return b""

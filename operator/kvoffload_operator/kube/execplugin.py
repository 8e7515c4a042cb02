"""Credentials from a kubeconfig's ``exec`` plugin (client.authentication.k8s.io/v1)."""

import base64
import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from kvoffload_operator.kube.errors import AccessError

# Cloud plugins call their own services; kubectl itself waits without end, a daemon must not.
_TIMEOUT_S: Final = 60.0


def exec_credential(plugin: Mapping[str, Any]) -> dict[str, str]:
    """Run the plugin and return what it gives, as fields of a kubeconfig's user.

    Args:
        plugin: The ``exec`` section: ``command``, ``args``, ``env``, ``apiVersion``.

    Returns:
        ``token``, or ``client-certificate-data`` and ``client-key-data``, or both.

    Raises:
        AccessError: The plugin is missing, failed, timed out or printed no credential.
    """
    command = str(plugin.get("command", ""))
    info = {
        "apiVersion": plugin.get("apiVersion", "client.authentication.k8s.io/v1"),
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    environment = os.environ | {"KUBERNETES_EXEC_INFO": json.dumps(info)}
    environment |= {str(item["name"]): str(item["value"]) for item in plugin.get("env") or ()}
    arguments = [str(argument) for argument in plugin.get("args") or ()]
    try:
        # The user's own kubeconfig names the command, as it does for kubectl.
        done = subprocess.run(  # noqa: S603
            [command, *arguments],
            env=environment,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        status = json.loads(done.stdout)["status"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        hint = str(plugin.get("installHint", ""))
        raise AccessError(f"the credential plugin {command!r} failed: {error}. {hint}") from error
    fields = {"token": str(status.get("token", ""))}
    for source, target in (
        ("clientCertificateData", "client-certificate-data"),
        ("clientKeyData", "client-key-data"),
    ):
        if status.get(source):
            fields[target] = base64.b64encode(status[source].encode()).decode()
    return fields

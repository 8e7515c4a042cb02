"""Starts and stops a real control plane: etcd, kube-apiserver, kube-controller-manager."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import yaml
from tests.cluster.api import ClusterApi, JsonObject
from tests.cluster.binaries import require
from tests.cluster.credentials import (
    API_SERVER_NAMES,
    Authority,
    KeyPair,
    write_kubeconfig,
    write_service_account_keys,
)
from tests.cluster.flags import (
    ABSENT_CONTROLLERS,
    api_server_flags,
    controller_manager_flags,
    etcd_flags,
)
from tests.cluster.reaper import Reaper
from tests.harness.processes import NotReadyError, Process

LOOPBACK = "127.0.0.1"
# etcd takes 1 s and the API server 5 s on an idle machine; builds may run beside them.
START_DEADLINE_SECONDS = 120.0
# With 5,000 open watches an API server took 62 s to end after SIGTERM.
STOP_PATIENCE_SECONDS = 90.0
# Below the range that Linux takes ports of outgoing connections from: a client that retries while
# the API server is down must not be given its port, nor connect to itself.
PORTS = range(20000, 30000)
START_ATTEMPTS = 3


class KubectlError(Exception):
    """A kubectl command failed; the text holds the command and its stderr."""


class ControlPlane(ClusterApi):
    """A running control plane. Make it with ``ControlPlane.start()``, from the main thread.

    The kernel kills its programs when the thread that started it ends.
    """

    bind_address = LOOPBACK
    absent_controllers = ABSENT_CONTROLLERS

    def __init__(self, *, directory: Path, programs: Mapping[str, Path], reaper: Reaper) -> None:
        self.directory = directory
        self.programs = programs
        self._reaper = reaper
        self._processes: dict[str, Process] = {}
        self._numbers = itertools.count()
        (directory / "logs").mkdir()
        self._authority = Authority(directory / "pki")
        self._serving = self._authority.issue(
            file_name="kube-apiserver",
            common_name="kube-apiserver",
            server_names=API_SERVER_NAMES,
            server_addresses=self.server_addresses(),
        )
        self._signing = write_service_account_keys(directory / "pki")
        self._etcd_url = f"http://{LOOPBACK}:{free_port()}"
        self._port = free_port()
        admin = self._certificate(user="admin", groups=("system:masters",))
        super().__init__(
            url=f"https://{LOOPBACK}:{self._port}",
            ca_file=self._authority.pair.certificate,
            client=admin,
        )
        self.kubeconfig = self._write_kubeconfig("admin", client=admin)

    @classmethod
    def start(cls) -> Self:
        """Start a control plane and wait until pods can be made in it.

        Raises:
            MissingBinaryError: a program was not built yet.
            NotReadyError: a program did not start; holds its last log lines.
        """
        programs = require()
        for attempt in range(1, START_ATTEMPTS + 1):
            directory = Path(tempfile.mkdtemp(prefix="kvoffload-cluster-"))
            reaper = Reaper(directory)
            try:
                plane = cls(directory=directory, programs=programs, reaper=reaper)
            except BaseException:
                reaper.remove()
                raise
            try:
                plane._start_all()
            except BaseException as error:
                plane.stop()
                # Another program may have taken the port since it was found free.
                if attempt < START_ATTEMPTS and "address already in use" in str(error):
                    continue
                raise
            return plane
        raise AssertionError("the last attempt returns or raises")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End everything at once and remove its folder; its data is not wanted any more."""
        for name in reversed(list(self._processes)):
            self._processes.pop(name).kill()
        self._reaper.remove()

    @property
    def cgroup(self) -> str:
        """Name of the cgroup of what a node runs; the reaper removes it."""
        return self.directory.name

    def server_addresses(self) -> tuple[str, ...]:
        """Return the addresses in the API server's certificate."""
        return (LOOPBACK,)

    def more_api_server_flags(self) -> list[str]:
        """Return what a control plane with nodes adds."""
        return []

    def stop_api_server(self, *, kill: bool = False) -> None:
        """Stop only the API server, with SIGTERM or SIGKILL; etcd keeps its data."""
        process = self._processes.pop("kube-apiserver")
        if kill:
            process.kill()
        else:
            process.stop(patience_seconds=STOP_PATIENCE_SECONDS)

    def start_api_server(self) -> None:
        """Start the API server, with the port and certificates that it had, and wait for it.

        Raises:
            NotReadyError: it did not become ready; holds its last log lines.
        """
        flags = api_server_flags(
            port=self._port,
            etcd_url=self._etcd_url,
            ca_file=self.ca_file,
            serving=self._serving,
            signing=self._signing,
            bind=self.bind_address,
        )
        self._launch("kube-apiserver", [*flags, *self.more_api_server_flags()], until=self.ready)

    def restart_api_server(self, *, kill: bool = False) -> None:
        """Stop and start the API server."""
        self.stop_api_server(kill=kill)
        self.start_api_server()

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run uses
        kubeconfig: Path | None = None,
        check: bool = True,
        deadline_seconds: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as admin, or with another kubeconfig.

        Raises:
            KubectlError: it failed and ``check`` is set, or it ran past its deadline.
        """
        command = [str(self.programs["kubectl"]), *args]
        try:
            done = subprocess.run(
                command,
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                env={**os.environ, **self.kubectl_environment(kubeconfig=kubeconfig)},
                capture_output=True,
                text=True,
                check=False,
                timeout=deadline_seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise KubectlError(f"kubectl {' '.join(args)} ran past {deadline_seconds} s") from error
        if check and done.returncode:
            raise KubectlError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done

    def kubectl_environment(self, *, kubeconfig: Path | None = None) -> dict[str, str]:
        """Return the variables under which kubectl talks to this cluster and leaves no cache."""
        return {
            "KUBECONFIG": str(kubeconfig or self.kubeconfig),
            "KUBECACHEDIR": str(self.directory / "kubectl-cache"),
            "KUBERC": "off",
        }

    def apply(self, manifests: Path | str | Sequence[JsonObject]) -> None:
        """Server-side apply a file, YAML text or objects, as field manager ``tests``."""
        if isinstance(manifests, Path):
            text = manifests.read_text()
        elif isinstance(manifests, str):
            text = manifests
        else:
            text = yaml.safe_dump_all(manifests)
        self.kubectl(
            "apply",
            "--server-side",
            "--field-manager=tests",
            "--force-conflicts",
            "-f",
            "-",
            input=text,
        )

    def kubeconfig_for_certificate(self, *, user: str, groups: Sequence[str] = ()) -> Path:
        """Return a kubeconfig of a user that Kubernetes knows by client certificate."""
        pair = self._certificate(user=user, groups=groups)
        return self._write_kubeconfig("user", client=pair)

    def kubeconfig_for_token(self, *, token: str) -> Path:
        """Return a kubeconfig of a token's bearer."""
        return self._write_kubeconfig("token", token=token)

    def kubeconfig_for_service_account(
        self, *, namespace: str, service_account: str = "default", pod: str | None = None
    ) -> Path:
        """Return a kubeconfig of a ServiceAccount, its token bound to ``pod`` if given."""
        token = self.create_token(namespace=namespace, service_account=service_account, pod=pod)
        return self.kubeconfig_for_token(token=token)

    def _start_all(self) -> None:
        self._launch(
            "etcd",
            etcd_flags(url=self._etcd_url, data=self.directory / "etcd"),
            until=self._etcd_healthy,
        )
        self.start_api_server()
        client = self._certificate(user="system:kube-controller-manager", groups=())
        flags = controller_manager_flags(
            kubeconfig=self._write_kubeconfig("kube-controller-manager", client=client),
            ca_file=self.ca_file,
            signing=self._signing,
            absent=self.absent_controllers,
        )
        self._launch(
            "kube-controller-manager",
            flags,
            until=lambda: self.exists("/api/v1/namespaces/default/serviceaccounts/default"),
        )

    def _launch(self, name: str, flags: Sequence[str], *, until: Callable[[], bool]) -> None:
        process = Process(
            [str(self.programs[name]), *flags],
            name=name,
            log=self.directory / "logs" / f"{name}.log",
        )
        self._processes[name] = process
        process.wait_until(until, what="ready", deadline_seconds=START_DEADLINE_SECONDS)

    def _etcd_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._etcd_url}/readyz", timeout=5):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def _certificate(self, *, user: str, groups: Sequence[str]) -> KeyPair:
        return self._authority.issue(
            file_name=f"client-{next(self._numbers)}", common_name=user, organizations=groups
        )

    def _write_kubeconfig(
        self, label: str, *, client: KeyPair | None = None, token: str = ""
    ) -> Path:
        return write_kubeconfig(
            self.directory / f"{label}-{next(self._numbers)}.kubeconfig",
            server=self.url,
            ca_file=self.ca_file,
            client=client,
            token=token,
        )


def free_port() -> int:
    """Return a loopback port that nothing listens on, outside the ephemeral range."""
    # Start somewhere that two control planes started together are unlikely to share.
    start = (os.getpid() * 7 + time.monotonic_ns() // 1000) % len(PORTS)
    for offset in range(len(PORTS)):
        port = PORTS[(start + offset) % len(PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise NotReadyError(f"no free port on {LOOPBACK} from {PORTS.start} to {PORTS.stop}")

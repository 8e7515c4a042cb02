"""A real node for the control plane: containerd, kubelet, kube-scheduler, in own namespaces.

One process holds a mount, a network and a process namespace. All of the node runs in them, so
the kernel ends and removes all of it with that process: containers, mounts, the pods' network.
Only cgroups and the folder outlive it; the reaper removes those, however this process ended.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.binaries import require_node
from tests.cluster.controlplane import ControlPlane
from tests.cluster.credentials import write_kubeconfig
from tests.cluster.packages import programs_of_debian
from tests.harness.processes import NotReadyError, Process
from tools.images.oci import write_archive, write_layer

NODE = "node-a"
PAUSE = "docker.io/kvoffload/pause:test"
SERVICE_ADDRESS = "10.0.0.1"  # the first of the API server's range
# kubelet was Ready 11 s after its start on a machine with other work.
READY_SECONDS = 180.0
# kubelet changes these for the whole machine; in the node's namespace they already are as it wants.
SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
HOLD = """set -e
mount --make-rshared /
mount -t proc proc /proc
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -p "$1/var" "$1/work"
mount -t overlay overlay -o "lowerdir=/var/lib,upperdir=$1/var,workdir=$1/work" /var/lib
for name in {names}; do mount --bind "$1/sysctl/$name" "/proc/sys/$name"; done
ip link set lo up
ip addr add {service}/32 dev lo
touch "$1/held"
exec sleep infinity
"""
PAUSE_SOURCE = """#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void stop(int n) { (void)n; _exit(0); }
static void reap(int n) { (void)n; while (waitpid(-1, 0, WNOHANG) > 0) ; }
int main(void) {
  signal(SIGTERM, stop); signal(SIGINT, stop); signal(SIGCHLD, reap);
  for (;;) pause();
}
"""


class Node(ControlPlane):
    """A control plane with one node, on which pods run. Needs root."""

    bind_address = "0.0.0.0"  # pods reach it; it asks everyone for credentials
    absent_controllers = ("node-ipam-controller",)

    @property
    def network(self) -> ipaddress.IPv4Network:
        """The link between machine and node: an own one for each process."""
        return ipaddress.IPv4Network(f"10.87.{os.getpid() % 250}.0/30")

    @property
    def machine_address(self) -> str:
        """Where the node reaches the API server."""
        return str(self.network[1])

    @property
    def node_address(self) -> str:
        """Where the API server reaches kubelet."""
        return str(self.network[2])

    @property
    def pod_network(self) -> str:
        """Addresses of pods."""
        return f"10.88.{os.getpid() % 250}.0/24"

    def server_addresses(self) -> tuple[str, ...]:
        """Addresses in the API server's certificate."""
        return (*super().server_addresses(), self.machine_address, SERVICE_ADDRESS)

    def more_api_server_flags(self) -> list[str]:
        """How the API server talks to kubelet, for `kubectl logs` and `exec`."""
        client = self._certificate(user="kube-apiserver-kubelet", groups=("system:masters",))
        return [
            f"--kubelet-client-certificate={client.certificate}",
            f"--kubelet-client-key={client.key}",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _start_all(self) -> None:
        if os.geteuid() != 0:
            raise NotReadyError("the node level needs root: it makes namespaces and cgroups")
        super()._start_all()
        self.programs = {**self.programs, **require_node(), **programs_of_debian()}
        self._hold()
        self._connect()
        self._write_configuration()
        self.start_node()
        self._start_scheduler()
        self.wait_ready()

    def stop(self) -> None:
        """End the node's namespaces first: the kernel ends what is in them."""
        holder = self._processes.pop("node", None)
        if holder is not None:
            holder.kill()
        super().stop()

    def _hold(self) -> None:
        for name, value in SYSCTLS.items():
            file = self.directory / "sysctl" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
        script = HOLD.format(names=" ".join(SYSCTLS), service=SERVICE_ADDRESS)
        process = Process(
            [
                *("unshare", "--mount", "--net", "--pid", "--uts", "--fork", "--kill-child"),
                *("--propagation", "private", "sh", "-c", script, "sh", str(self.directory)),
            ],
            name="node",
            log=self.directory / "logs" / "node.log",
        )
        self._processes["node"] = process
        process.wait_until(
            (self.directory / "held").exists, what="its namespaces", deadline_seconds=30
        )
        children = Path(f"/proc/{process.popen.pid}/task/{process.popen.pid}/children").read_text()
        self._inside = int(children.split()[0])
        make_cgroups(self.cgroup)

    def _connect(self) -> None:
        link = f"kvo{os.getpid() % 250}"
        for words in (
            [
                "link",
                "add",
                link,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                str(self._inside),
            ],
            ["addr", "add", f"{self.machine_address}/30", "dev", link],
            ["link", "set", link, "up"],
        ):
            command(["ip", *words])
        for words in (
            ["addr", "add", f"{self.node_address}/30", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["route", "add", "default", "via", self.machine_address],
        ):
            command(self.inside(["ip", *words]))
        command(["ip", "route", "add", self.pod_network, "via", self.node_address])

    def inside(self, words: Sequence[str]) -> list[str]:
        """Return a command that runs in the node's namespaces."""
        return ["nsenter", "-t", str(self._inside), "-m", "-n", "-p", "-u", "--", *words]

    def start_node(self) -> None:
        """Start containerd, kubelet and what stands for kube-proxy."""
        self._launch_inside(
            "kubernetes-service",
            [
                *(sys.executable, str(Path(__file__).with_name("forward.py"))),
                *(SERVICE_ADDRESS, "443", self.machine_address, str(self._port)),
            ],
        )
        self._launch_inside(
            "containerd",
            [str(self.programs["containerd"]), "--config", str(self.directory / "containerd.toml")],
        )
        self._processes["containerd"].wait_until(
            lambda: self.ctr("version", check=False).returncode == 0,
            what="answering",
            deadline_seconds=60,
        )
        if not self.ctr("images", "ls", "-q", f"name=={PAUSE}").stdout.strip():
            self.load_image(pause_image(self.directory / "pause"))
        self._launch_inside(
            "kubelet",
            [
                str(self.programs["kubelet"]),
                f"--config={self.directory / 'kubelet.yaml'}",
                f"--kubeconfig={self.directory / 'kubelet.kubeconfig'}",
                f"--hostname-override={NODE}",
                f"--node-ip={self.node_address}",
                f"--root-dir={self.directory / 'kubelet'}",
                f"--cert-dir={self.directory / 'kubelet-pki'}",
            ],
        )

    def stop_node(self) -> None:
        """Kill kubelet and containerd, as a crash of them would; containers live on."""
        for name in ("kubelet", "containerd", "kubernetes-service"):
            self._processes.pop(name).kill()

    def wait_ready(self) -> None:
        """Wait until pods can run.

        Raises:
            NotReadyError: the node did not become Ready in time.
        """

        def ready() -> bool:
            if not self.exists(f"/api/v1/nodes/{NODE}"):
                return False
            node = self.request(method="GET", path=f"/api/v1/nodes/{NODE}")
            conditions = {c["type"]: c["status"] for c in node["status"].get("conditions", [])}
            return conditions.get("Ready") == "True" and not node["spec"].get("taints")

        self._processes["kubelet"].wait_until(
            ready, what="a Ready node", deadline_seconds=READY_SECONDS
        )

    def ctr(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run containerd's client."""
        return command(
            self.inside(
                [
                    str(self.programs["ctr"]),
                    *("--address", str(self.directory / "containerd.sock"), "-n", "k8s.io", *words),
                ]
            ),
            check=check,
        )

    def load_image(self, archive: Path) -> None:
        """Import an image."""
        self.ctr("images", "import", str(archive))

    def _start_scheduler(self) -> None:
        client = self._certificate(user="system:kube-scheduler", groups=())
        kubeconfig = self._write_kubeconfig("kube-scheduler", client=client)
        self._launch(
            "kube-scheduler",
            [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0"],
            until=lambda: True,
        )

    def _launch_inside(self, name: str, words: Sequence[str]) -> None:
        path = f"{self.programs['containerd-shim-runc-v2'].parent}:{self.programs['runc'].parent}"
        self._processes[name] = Process(
            self.inside(words),
            name=name,
            log=self.directory / "logs" / f"{name}.log",
            environment={"PATH": f"{path}:{os.environ['PATH']}"},
        )

    def _write_configuration(self) -> None:
        here = self.directory
        (here / "containerd.toml").write_text(
            containerd_configuration(here, cni=self.programs["bridge"].parent)
        )
        (here / "cni").mkdir()
        (here / "cni" / "10-bridge.conflist").write_text(json.dumps(cni(self.pod_network)))
        (here / "kubelet.yaml").write_text(
            yaml.safe_dump(kubelet_configuration(here, ca=self.ca_file, cgroup=self.cgroup))
        )
        client = self._certificate(user=f"system:node:{NODE}", groups=("system:nodes",))
        write_kubeconfig(
            here / "kubelet.kubeconfig",
            server=f"https://{self.machine_address}:{self._port}",
            ca_file=self.ca_file,
            client=client,
        )


def containerd_configuration(here: Path, *, cni: Path) -> str:
    """Return containerd's configuration: folders of its own, no registry, cgroupfs."""
    return f"""version = 3
root = "{here}/containerd"
state = "{here}/containerd-state"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
address = "{here}/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "{here}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def cni(network: str) -> dict[str, Any]:
    """Return the pods' network: one bridge, which is their gateway."""
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": network}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": "/run/cni",
        },
    }
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


def kubelet_configuration(here: Path, *, ca: Path, cgroup: str) -> dict[str, Any]:
    """Return kubelet's configuration: what a machine that it shares with others allows."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(ca)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{here}/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "podLogsDir": str(here / "pod-logs"),
        "resolvConf": "",
        "makeIPTablesUtilChains": False,
        "serverTLSBootstrap": False,
        "volumePluginDir": str(here / "volume-plugins"),
        "syncFrequency": "5s",
    }


def pause_image(folder: Path) -> Path:
    """Build the image whose process holds a pod's namespaces."""
    (folder / "tree").mkdir(parents=True)
    source = folder / "pause.c"
    source.write_text(PAUSE_SOURCE)
    command(["gcc", "-static", "-Os", "-o", str(folder / "tree" / "pause"), str(source)])
    blobs = folder / "blobs"
    blobs.mkdir()
    layer = write_layer(folder / "tree", directory=blobs)
    config = {"Entrypoint": ["/pause"], "User": "65535:65535"}
    path = folder / "pause.tar"
    write_archive(path, name=PAUSE, layers=[layer], config=config, directory=blobs)
    return path


def controllers() -> list[Path]:
    """Return where cgroup controllers are mounted: each on its own, or all as one tree."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root]
    return [folder for folder in root.iterdir() if folder.is_dir() and os.path.ismount(folder)]


def make_cgroups(name: str) -> None:
    """Make the cgroup under which the node's pods are."""
    for controller in controllers():
        folder = controller / name
        folder.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            with contextlib.suppress(OSError):
                (folder / file).write_text((controller / file).read_text())


def command(words: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program.

    Raises:
        NotReadyError: it failed.
    """
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )
    if check and done.returncode:
        raise NotReadyError(f"`{' '.join(words)}` ended with {done.returncode}: {done.stderr}")
    return done

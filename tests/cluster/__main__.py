"""Builds and runs the test cluster.

Examples:
  python -m tests.cluster build
      build etcd, kube-apiserver, kube-controller-manager and kubectl into the cache
  python -m tests.cluster build --helm
      build Helm too, for the tests of the chart
  python -m tests.cluster build --background-log build.log
      the same beside other work; progress goes to build.log
  python -m tests.cluster up
      run a control plane until Ctrl-C; with its KUBECONFIG printed, in another terminal:
      kubectl apply --server-side -f crds/generated/
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from tests.cluster.binaries import BINARIES, HELM, NODE_BINARIES, built_directory, require
from tests.cluster.build import BuildError, build
from tests.cluster.controlplane import ControlPlane
from tests.cluster.node import Node
from tests.harness.processes import NotReadyError

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run one command; exit code 1 with the reason if it cannot be done, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    builder = commands.add_parser(
        "build", help="build what is missing (7 to 15 min the first time on 2 cores)"
    )
    builder.add_argument(
        "--background-log",
        type=Path,
        metavar="FILE",
        help="return at once and build in the background, telling how far it is in FILE",
    )
    builder.add_argument(
        "--helm", action="store_true", help="build Helm too (4 min more the first time)"
    )
    builder.add_argument(
        "--node",
        action="store_true",
        help="build kubelet, kube-scheduler and containerd too (5 min more the first time)",
    )
    upper = commands.add_parser("up", help="build what is missing, then run until Ctrl-C")
    upper.add_argument(
        "--node", action="store_true", help="with a node on which pods run; needs root"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        if arguments.command == "up":
            return up(node=arguments.node)
        if arguments.background_log is not None:
            return build_in_background(arguments.background_log)
        helm = (HELM,) if arguments.helm else ()
        build((*BINARIES, *helm, *(NODE_BINARIES if arguments.node else ())))
        print(f"control plane: ready in {built_directory()}")
    except (BuildError, NotReadyError) as error:
        print(f"control plane: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; what was built stays, run it again to go on", file=sys.stderr)
        return 130
    return 0


def interrupt(*_: object) -> None:
    """End on SIGTERM as on Ctrl-C, so that everything is cleaned up."""
    raise KeyboardInterrupt


def build_in_background(log: Path) -> int:
    """Start a build that outlives this process."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.cluster", "build"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    print(f"building in the background: process {process.pid}, progress in {log}")
    return 0


def up(*, node: bool) -> int:
    """Run a control plane until Ctrl-C or SIGTERM."""
    build((*BINARIES, *(NODE_BINARIES if node else ())))
    kubectl = require()["kubectl"]
    with (Node if node else ControlPlane).start() as plane:
        print(f"export KUBECONFIG={plane.kubeconfig}")
        print(f"{kubectl} get namespaces")
        print(f"logs in {plane.directory / 'logs'}; Ctrl-C ends it and removes everything")
        sys.stdout.flush()
        try:
            while True:
                signal.pause()
        except KeyboardInterrupt:
            print("\nstopping", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

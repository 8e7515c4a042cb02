"""The ``kvoffload-agent`` command."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kvoffload_agent import version
from kvoffload_agent.app import DRAIN_SECONDS, Options, report_to_cluster
from kvoffload_agent.app import run as run_agent
from kvoffload_agent.arguments import HostCgroups, LimitFile, MemoryLimit, quantity
from kvoffload_agent.config.directory import DirectorySource, open_directory
from kvoffload_agent.config.node import open_node
from kvoffload_agent.deviceplugin.cli import device_plugin
from kvoffload_agent.doctor import print_report, report
from kvoffload_agent.folders import PRIVATE, PUBLIC, FolderError, give
from kvoffload_agent.kube.access import AccessError, from_kubeconfig
from kvoffload_agent.kube.access import in_cluster as in_cluster_access
from kvoffload_agent.logs import configure
from kvoffload_agent.memory.reader import SnapshotReader
from kvoffload_agent.server.listener import ListenError
from kvoffload_agent.web import WebError

DEFAULT_SOCKET: Final = Path("/run/kvoffload/agent.sock")
DEFAULT_STATE: Final = Path("/var/lib/kvoffload")
DEFAULT_HTTP: Final = "127.0.0.1:9808"
# sysexits.h: something outside this program is not as it must be.
EXIT_UNAVAILABLE: Final = 69
# doctor: nothing may be taken, so a script need not read the verdict.
EXIT_REFUSE: Final = 1


class LogFormat(StrEnum):
    """How log lines look."""

    JSON = "json"
    CONSOLE = "console"


class Output(StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


app = typer.Typer(
    name="kvoffload-agent",
    help="The node agent of kvoffload: serves KV-cache offload to the engines of a node.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _pairs(items: list[str], *, option: str) -> dict[str, str]:
    found = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{item!r} is not KEY=VALUE", param_hint=option)
        found[key] = value
    return found


def _uids(items: list[str]) -> dict[int, str]:
    found = {}
    for uid, namespace in _pairs(items, option="--uid-namespace").items():
        if not (uid.isascii() and uid.isdigit()) or not namespace:
            raise typer.BadParameter(
                f"{uid}={namespace} is not UID=NAMESPACE", param_hint="--uid-namespace"
            )
        found[int(uid)] = namespace
    return found


@app.command()
def run(
    *,
    policies: Annotated[
        Path | None,
        typer.Option(
            help="Standalone: a directory of YAML with KVOffloadPolicy and ClusterKVOffloadPolicy "
            "objects, followed while the agent runs; identities.yaml in it names local engines."
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="In a cluster: how to reach the API server, from outside a pod."),
    ] = None,
    in_cluster: Annotated[
        bool, typer.Option("--in-cluster", help="In a cluster: use the pod's own credentials.")
    ] = False,
    node_name: Annotated[
        str,
        typer.Option(envvar="NODE_NAME", help="Name of this node, and of its KVOffloadNode."),
    ] = socket.gethostname(),
    node_label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Standalone: a label of this node; repeatable."),
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(
            help="Standalone: namespace of engines that nothing else maps; empty refuses them."
        ),
    ] = "default",
    uid_namespace: Annotated[
        list[str] | None,
        typer.Option(metavar="UID=NS", help="Standalone: namespace of a uid; repeatable."),
    ] = None,
    socket_path: Annotated[
        Path, typer.Option("--socket", help="Unix socket for engines; a stale one is replaced.")
    ] = DEFAULT_SOCKET,
    http: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="HOST:PORT or unix:PATH of /metrics, /healthz, /readyz and /debug/state; "
            "empty: none.",
        ),
    ] = DEFAULT_HTTP,
    state_dir: Annotated[
        Path,
        typer.Option(help="In a cluster: where the last good configuration is kept (0600)."),
    ] = DEFAULT_STATE,
    host_memory: Annotated[
        int | None,
        typer.Option(
            parser=quantity,
            metavar="QUANTITY",
            help="Host memory that this agent takes at most, such as 8Gi, whatever policy says. "
            "Without it and without a nodeBudget: half of what is free when it starts.",
        ),
    ] = None,
    disk: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Directory for chunks on the node's disk, of this agent alone (0700). How much "
            "is kept there policies say (localDisk.capacity). Without it no disk is used.",
        ),
    ] = None,
    drain_seconds: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="How long running loads may take to end once it is asked to stop; a second "
            "signal ends them. In a pod keep it 15 s below terminationGracePeriodSeconds.",
        ),
    ] = DRAIN_SECONDS,
    memory_limit: MemoryLimit = None,
    memory_limit_file: LimitFile = None,
    host_cgroups: HostCgroups = None,
    log_format: Annotated[LogFormat, typer.Option(help="How log lines look.")] = LogFormat.JSON,
    debug: Annotated[bool, typer.Option("--debug", help="Log more.")] = False,
) -> None:
    """Serve the engines of this node until SIGTERM or Ctrl-C.

    \b
    Examples:
      kvoffload-agent run --policies ./policies --socket /tmp/kvo/agent.sock
      kvoffload-agent run --in-cluster --node-name $NODE_NAME

    \b
    Exit codes:
      0   asked to stop
      1   a part failed: start it again
      2   wrong usage, or credentials that cannot be read
      69  the socket or the HTTP address cannot be used
    """  # noqa: D301 - click keeps the lines after a backspace character
    configure(console=log_format is LogFormat.CONSOLE, debug=debug)
    ways = [policies is not None, kubeconfig is not None, in_cluster]
    if sum(ways) != 1:
        raise typer.BadParameter("give exactly one of --policies, --kubeconfig and --in-cluster")
    options = Options(
        socket=socket_path,
        http=http,
        snapshot=SnapshotReader(
            explicit_limit=memory_limit, limit_file=memory_limit_file, host_cgroups=host_cgroups
        ),
        host_memory=host_memory,
        disk=disk,
        drain_seconds=drain_seconds,
    )
    if policies is not None:
        if not policies.is_dir():
            raise typer.BadParameter(f"{policies} is no directory", param_hint="--policies")
        source = DirectorySource(
            folder=policies,
            node_name=node_name,
            node_labels={
                "kubernetes.io/hostname": node_name,
                **_pairs(node_label or [], option="--node-label"),
            },
            uid_namespaces=_uids(uid_namespace or []),
            namespace=namespace or None,
        )
        work = run_agent(options=options, make_source=lambda: open_directory(source))
    else:
        try:
            access = in_cluster_access() if in_cluster else from_kubeconfig(kubeconfig or Path())
        except AccessError as error:
            raise typer.BadParameter(str(error)) from error
        work = run_agent(
            options=options,
            make_source=lambda: open_node(access=access, node_name=node_name, state_dir=state_dir),
            extra=report_to_cluster,
        )
    _until_stopped(work)


def _until_stopped(work: Any) -> None:
    """Run to the end; what a person must mend ends with one line and no traceback."""
    try:
        asyncio.run(work)
    except* (ListenError, WebError) as group:
        for error in group.exceptions:
            print(f"kvoffload-agent: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_UNAVAILABLE) from None


@app.command()
def doctor(
    *,
    wanted: Annotated[
        int,
        typer.Option("--bytes", parser=quantity, metavar="QUANTITY", help="How much is asked for."),
    ] = 1 << 30,
    memory_limit: MemoryLimit = None,
    memory_limit_file: LimitFile = None,
    host_cgroups: HostCgroups = None,
    root: Annotated[
        Path, typer.Option(help="Where /proc and /sys are, for recorded machines.")
    ] = Path("/"),
    output: Annotated[
        Output, typer.Option("-o", "--output", help="How results are printed.")
    ] = Output.TEXT,
) -> None:
    """Show which limits apply here and whether so much host memory could be taken now.

    \b
    Verdicts:
      Admit   all of it may be taken
      Shrink  only a part of it may be taken, and how much is printed
      Refuse  nothing may be taken, and why is printed

    \b
    Exit codes:
      0  Admit or Shrink
      1  Refuse
      2  wrong usage

    \b
    Example:
      kvoffload-agent doctor --bytes 8Gi -o json
    """  # noqa: D301 - click keeps the lines after a backspace character
    snapshot = SnapshotReader(
        root=root,
        explicit_limit=memory_limit,
        limit_file=memory_limit_file,
        host_cgroups=host_cgroups,
    )()
    found = report(snapshot, wanted=wanted)
    if output is Output.JSON:
        print(json.dumps(found, indent=2))
    else:
        print_report(found)
    if found["verdict"]["answer"] == "Refuse":
        raise typer.Exit(EXIT_REFUSE)


@app.command()
def prepare(
    *,
    owner: Annotated[int, typer.Option(min=0, metavar="UID", help="Whom the folders are for.")],
    public: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A folder that everybody may enter (0755); repeatable."),
    ] = None,
    private: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A folder of the owner alone (0700); repeatable."),
    ] = None,
) -> None:
    """Make a node's folders and give them to the agent, as root before it starts.

    \b
    Exit codes:
      0   they are as asked for
      2   wrong usage
      69  one of them cannot be, as the message says
    """  # noqa: D301 - click keeps the lines after a backspace character
    try:
        for folder in public or []:
            give(folder, owner=owner, mode=PUBLIC)
        for folder in private or []:
            give(folder, owner=owner, mode=PRIVATE)
    except FolderError as error:
        print(f"kvoffload-agent: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_UNAVAILABLE) from None


app.command(name="device-plugin")(device_plugin)


@app.command(name="version")
def show_version() -> None:
    """Print the version."""
    print(version())


def main() -> None:
    """Run the command line."""
    app()

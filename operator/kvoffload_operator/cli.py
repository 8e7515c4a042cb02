"""The command line of the operator."""

import asyncio
import os
import socket
import uuid
from typing import Annotated

import typer

from kvoffload_operator import logs, version
from kvoffload_operator.app import Options, run_operator
from kvoffload_operator.kube.access import load_access
from kvoffload_operator.kube.errors import AccessError

app = typer.Typer(
    name="kvoffload-operator",
    help="Compiles KV offload policies into one configuration per node.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command()
def run(  # noqa: PLR0917 - typer makes options of them
    kubeconfig: Annotated[
        str, typer.Option(help="Path of a kubeconfig; default: the pod's ServiceAccount.")
    ] = "",
    context: Annotated[str, typer.Option(help="Context of the kubeconfig.")] = "",
    namespace: Annotated[
        str, typer.Option(help="Namespace of the Lease.", envvar="KVOFFLOAD_NAMESPACE")
    ] = "kvoffload-system",
    leader_elect: Annotated[  # noqa: FBT002 - --leader-elect or --no-leader-elect
        bool, typer.Option(help="Write only while holding the Lease; needed for more replicas.")
    ] = True,
    node_selector: Annotated[
        str, typer.Option(help="Labels of the nodes to configure; default: every node.")
    ] = "",
    agents: Annotated[
        str,
        typer.Option(
            metavar="NAMESPACE/NAME",
            help="ConfigMap of agent pools: keep a DaemonSet for each, and configure only their "
            "nodes.",
        ),
    ] = "",
    host: Annotated[str, typer.Option(help="Address of the HTTP port; default: all.")] = "",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="/healthz, /readyz, /metrics; 0: any port.")
    ] = 8080,
    log_format: Annotated[str, typer.Option(help="json or console.")] = "json",
    debug: Annotated[  # noqa: FBT002 - a switch
        bool, typer.Option(help="Log every pass, not only what changed something.")
    ] = False,
) -> None:
    """Run until SIGTERM or Ctrl-C.

    \b
    Examples:
      kvoffload-operator run --kubeconfig ~/.kube/config --no-leader-elect
      kvoffload-operator run --node-selector nvidia.com/gpu.present=true

    \b
    Exit codes:
      0  asked to stop
      1  the lease was lost, the CRDs vanished or a part failed: start it again
      2  wrong usage
      3  no access to the cluster
    """  # noqa: D301 - click keeps the lines after a backspace character
    if log_format not in {"json", "console"}:
        raise typer.BadParameter("must be json or console", param_hint="--log-format")
    logs.configure(console=log_format == "console", debug=debug)
    try:
        access = load_access(kubeconfig=kubeconfig, context=context)
    except AccessError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(3) from error
    options = Options(
        namespace=namespace,
        leader_elect=leader_elect,
        node_selector=_labels(node_selector),
        pools=_pools(agents),
        host=host,
        port=port,
        # The pod's name helps people, the rest keeps a restarted process apart from its past.
        identity=f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4()}",
    )
    raise typer.Exit(asyncio.run(run_operator(access, options)))


@app.command(name="version")
def show_version() -> None:
    """Print the version."""
    typer.echo(version())


def _labels(text: str) -> dict[str, str]:
    pairs = [pair.strip() for pair in text.split(",") if pair.strip()]
    labels = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(labels) != len(pairs):
        raise typer.BadParameter(
            f"{text!r} must be key=value pairs with commas between", param_hint="--node-selector"
        )
    return labels


def _pools(text: str) -> tuple[str, str] | None:
    if not text:
        return None
    namespace, separator, name = text.partition("/")
    if not (separator and namespace and name) or "/" in name:
        raise typer.BadParameter(f"{text!r} must be NAMESPACE/NAME", param_hint="--agents")
    return namespace, name


def main() -> None:
    """Run the command line."""
    app()

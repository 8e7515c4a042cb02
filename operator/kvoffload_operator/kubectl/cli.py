"""The command line of ``kubectl kvoffload``.

Exit codes: 0 done; 1 there is nothing to show, and the message says why; 2 wrong usage;
3 the cluster could not be reached or refused. Programs get an empty list and 0.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer

from kvoffload_operator import version
from kvoffload_operator.crds import INSTALL_CRDS
from kvoffload_operator.kube.access import Access, load_access
from kvoffload_operator.kube.client import KubeClient
from kvoffload_operator.kube.errors import KubeError, NotFoundError
from kvoffload_operator.kube.resources import PODS, Resource
from kvoffload_operator.kubectl.explain import ExplainError, Explanation, explain, node_of
from kvoffload_operator.kubectl.render import Output, age, condition, document, table
from kvoffload_operator.resources import CLUSTER_POLICIES, OFFLOAD_NODES, POLICIES

T = TypeVar("T")

_NOTHING: Final = 1
_CLUSTER: Final = 3

app = typer.Typer(
    name="kubectl-kvoffload",
    help="Why a pod may load and store what it may, and whether that is in force.\n\n"
    "\b\nExit codes:\n"
    "  0  done\n"
    "  1  nothing to show: the message says why\n"
    "  2  wrong usage\n"
    "  3  the cluster could not be reached or refused",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
explain_app = typer.Typer(
    help="Name the source of every effective value.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(explain_app, name="explain")

Kubeconfig = Annotated[str, typer.Option(help="Path of the kubeconfig file.")]
Context = Annotated[str, typer.Option(help="Context of the kubeconfig.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Default: the context's.")]
Format = Annotated[Output, typer.Option("--output", "-o", help="Form of the output.")]


@explain_app.command("pod")
def explain_pod(
    name: Annotated[str, typer.Argument(help="Name of an engine pod.")],
    namespace: Namespace = "",
    output: Format = Output.TABLE,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Show each effective value of a pod and who set it.

    `-o wide` adds whose value it was that a limit cut.

    Example: kubectl kvoffload explain pod vllm-0 -n team-a
    """

    async def gather(client: KubeClient, access: Access) -> Explanation:
        space = namespace or access.namespace
        try:
            pod = await client.get(PODS, name=name, namespace=space)
        except NotFoundError as error:
            raise ExplainError(
                f"there is no pod {space}/{name}; "
                f"`kubectl get pods -n {space} -l kvoffload.io/engine=true` lists engine pods"
            ) from error
        node = node_of(pod)
        try:
            return explain(pod, await client.get(OFFLOAD_NODES, name=node))
        except NotFoundError as error:
            raise ExplainError(
                f"node {node} has no KVOffloadNode, so the pod loads and stores nothing; "
                "is the operator running, and does it select this node?"
            ) from error

    found = _run(gather, kubeconfig=kubeconfig, context=context)
    if output in {Output.JSON, Output.YAML}:
        typer.echo(document(_explanation(found), output=output))
        return
    force = "in force" if found.in_force else "not yet in force: the agent has not applied it"
    typer.echo(f"Pod:     {found.pod}\nNode:    {found.node}")
    typer.echo(f"Policy:  {found.source}\nEntry:   {found.entry} ({force})\n")
    header = ["FIELD", "VALUE", "SOURCE", "CLAMPED FROM"]
    rows = []
    for item in found.rows:
        row = [item.field, item.value, item.source, item.clamped_from or "-"]
        rows.append([*row, item.clamped_source or "-"] if output is Output.WIDE else row)
    typer.echo(table([*header, "CLAMPED SOURCE"] if output is Output.WIDE else header, rows))


@app.command()
def status(
    output: Format = Output.TABLE, kubeconfig: Kubeconfig = "", context: Context = ""
) -> None:
    """Show every policy, whether it is ready, and why not.

    Example: kubectl kvoffload status -o wide
    """

    async def gather(client: KubeClient, _access: Access) -> list[dict[str, Any]]:
        return [
            *await _items(client, CLUSTER_POLICIES),
            *await _items(client, POLICIES),
        ]

    policies = _run(gather, kubeconfig=kubeconfig, context=context)
    if output in {Output.JSON, Output.YAML}:
        typer.echo(document({"policies": [_policy(item) for item in policies]}, output=output))
        return
    if not policies:
        _nothing(
            "no policies, so engine pods get the built-in values; `kubectl explain kvop.spec` "
            "tells what a KVOffloadPolicy sets, and docs/how-to/cluster.md has one to apply"
        )
    header = ["POLICY", "READY", "REASON", "NODES", "CURRENT", "AGE"]
    rows = []
    for item in policies:
        ready, reason, message = condition(item, "Ready")
        counts = (item.get("status") or {}).get("nodes") or {}
        row = [
            _name(item),
            ready,
            reason,
            str(counts.get("selected", "-")),
            str(counts.get("current", "-")),
            age(item["metadata"]["creationTimestamp"]),
        ]
        rows.append([*row, message] if output is Output.WIDE else row)
    typer.echo(table([*header, "MESSAGE"] if output is Output.WIDE else header, rows))


@app.command()
def nodes(
    stale: Annotated[bool, typer.Option(help="Only nodes whose agent is behind.")] = False,  # noqa: FBT002
    output: Format = Output.TABLE,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Show every node, its agent's state, and whether its configuration is in force.

    With --stale and no agent behind, it says so and ends with 0.

    Example: kubectl kvoffload nodes --stale
    """

    async def gather(client: KubeClient, _access: Access) -> list[dict[str, Any]]:
        return await _items(client, OFFLOAD_NODES)

    every = [_node(item) for item in _run(gather, kubeconfig=kubeconfig, context=context)]
    found = [item for item in every if not (stale and item["current"])]
    if output in {Output.JSON, Output.YAML}:
        typer.echo(document({"nodes": found}, output=output))
        return
    if not every:
        _nothing(
            "no nodes: the operator makes a KVOffloadNode for each Node that it selects; is it "
            "running, and does its --node-selector match `kubectl get nodes --show-labels`?"
        )
    if not found:
        typer.echo(f"no stale nodes: each of {len(every)} has its configuration in force")
        return
    header = ["NODE", "READY", "REASON", "CURRENT", "PODS", "ENTRIES"]
    rows = []
    for item in found:
        row = [
            item["name"],
            item["ready"],
            item["reason"],
            "yes" if item["current"] else "no",
            str(item["pods"]),
            str(item["entries"]),
        ]
        extra = [item["hash"] or "-", item["appliedHash"] or "-", item["agentVersion"] or "-"]
        rows.append([*row, *extra] if output is Output.WIDE else row)
    wide = ["HASH", "APPLIED", "AGENT"]
    typer.echo(table([*header, *wide] if output is Output.WIDE else header, rows))


@app.command(name="version")
def show_version() -> None:
    """Print the version of this program."""
    typer.echo(version())


def _nothing(why: str) -> NoReturn:
    typer.echo(why, err=True)
    raise typer.Exit(_NOTHING)


def _run(
    gather: Callable[[KubeClient, Access], Awaitable[T]], *, kubeconfig: str, context: str
) -> T:
    async def main() -> T:
        access = load_access(kubeconfig=kubeconfig, context=context)
        async with KubeClient(access, user_agent="kubectl-kvoffload") as client:
            return await gather(client, access)

    try:
        return asyncio.run(main())
    except ExplainError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_NOTHING) from error
    except NotFoundError as error:
        typer.echo(
            f"error: {error}; are kvoffload's CRDs installed? "
            f"`kubectl get crds | grep kvoffload.io` tells, `{INSTALL_CRDS}` installs them",
            err=True,
        )
        raise typer.Exit(_CLUSTER) from error
    except KubeError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_CLUSTER) from error


async def _items(client: KubeClient, resource: Resource) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async for page in client.list_pages(resource):
        # Items of a list carry no kind of their own.
        found.extend({"kind": resource.kind, **item} for item in page.get("items") or ())
    return found


def _name(item: dict[str, Any]) -> str:
    space = item["metadata"].get("namespace")
    name = item["metadata"]["name"]
    return f"{item['kind']}/{space}/{name}" if space else f"{item['kind']}/{name}"


def _policy(item: dict[str, Any]) -> dict[str, Any]:
    ready, reason, message = condition(item, "Ready")
    return {
        "policy": _name(item),
        "ready": ready,
        "reason": reason,
        "message": message,
        "nodes": (item.get("status") or {}).get("nodes") or {},
    }


def _node(item: dict[str, Any]) -> dict[str, Any]:
    ready, reason, message = condition(item, "Ready")
    spec, state = item.get("spec") or {}, item.get("status") or {}
    return {
        "name": item["metadata"]["name"],
        "ready": ready,
        "reason": reason,
        "message": message,
        "current": bool(spec.get("hash")) and spec.get("hash") == state.get("appliedHash"),
        "pods": len(spec.get("pods") or ()),
        "entries": len(spec.get("entries") or ()),
        "hash": spec.get("hash", ""),
        "appliedHash": state.get("appliedHash", ""),
        "agentVersion": state.get("agentVersion", ""),
    }


def _explanation(found: Explanation) -> dict[str, Any]:
    return {
        "pod": found.pod,
        "node": found.node,
        "policy": found.source,
        "entry": found.entry,
        "inForce": found.in_force,
        "fields": [
            {
                "field": row.field,
                "value": row.value,
                "source": row.source,
                "clampedFrom": row.clamped_from,
                "clampedSource": row.clamped_source,
            }
            for row in found.rows
        ],
    }


def main() -> None:
    """Run the command line."""
    # Through kubectl the program's own name would be a path.
    app(prog_name="kubectl kvoffload" if "kubectl-" in sys.argv[0] else None)

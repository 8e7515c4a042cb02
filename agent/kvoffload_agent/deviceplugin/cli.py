"""The command ``kvoffload-agent device-plugin``."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from kvoffload_agent.deviceplugin.plugin import PluginError, PluginOptions, run_plugin
from kvoffload_agent.logs import configure

# Fixed in kubelet's source, whatever its --root-dir is.
DEFAULT_FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
# sysexits.h: something outside this program is not as it must be.
EXIT_UNAVAILABLE: Final = 69


def device_plugin(
    *,
    agent_socket: Annotated[
        Path, typer.Option("--socket", help="The agent's socket, as this process sees it.")
    ] = Path("/run/kvoffload/agent.sock"),
    host_directory: Annotated[
        str, typer.Option(help="The folder of that socket on the node, which pods are given.")
    ] = "/run/kvoffload",
    folder: Annotated[
        Path, typer.Option("--kubelet-directory", help="Kubelet's folder of device plugins.")
    ] = DEFAULT_FOLDER,
    console: Annotated[bool, typer.Option("--console", help="Log for people, not JSON.")] = False,
) -> None:
    """Offer the device kvoffload.io/agent to kubelet, as root, until SIGTERM.

    Kubelet mounts the socket's folder into every container that asks for the device, and pods that
    do are placed only where an agent serves.

    \b
    Exit codes:
      0   asked to stop
      69  kubelet's folder cannot be used
    """  # noqa: D301 - click keeps the lines after a backspace character
    configure(console=console, debug=False)
    options = PluginOptions(folder=folder, agent=agent_socket, host_directory=host_directory)
    try:
        asyncio.run(run_plugin(options, until=_asked_to_stop))
    except PluginError as error:
        print(f"kvoffload-agent: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_UNAVAILABLE) from None


async def _asked_to_stop() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()

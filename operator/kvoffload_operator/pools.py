"""Agent pools as the chart's ConfigMap describes them, and the DaemonSet that each becomes.

Data in, data out. Only what is wrong for whoever installs is an error here;
everything that Kubernetes itself checks is left to the API server.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from kvoffload_api.quantity import QuantityError, parse_quantity

Json = Mapping[str, Any]

CONFIG_KEY: Final = "agents.yaml"
POOL_LABEL: Final = "kvoffload.io/pool"
# A DaemonSet whose spec was changed by somebody else still says which intent we last wrote.
INTENT_ANNOTATION: Final = "kvoffload.io/intent"
# An agent's Python process, its segments' page tables and room for a burst of connections.
AGENT_OVERHEAD_BYTES: Final = 256 << 20
_POOL_NAME: Final = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"


class PoolsError(Exception):
    """The ConfigMap of the pools is wrong; for the person who installs."""


class _Read(BaseModel):
    # An older operator must take what a newer chart adds.
    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True
    )


class Pool(_Read):
    """One pool of nodes.

    Attributes:
        name: Part of its DaemonSet's name.
        node_selector: Labels of its nodes.
        tolerations: Of its agents.
        host_memory: Most host memory for chunks, a quantity; ``None`` for no bound of its own.
        resources: Of the agent's container; ``limits.memory`` is needed.
    """

    name: Annotated[str, Field(pattern=_POOL_NAME)]
    node_selector: Mapping[str, str]
    tolerations: tuple[Json, ...] = ()
    host_memory: str | None = None
    resources: Mapping[str, Mapping[str, Any]]

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels belongs to the pool."""
        return all(labels.get(key) == value for key, value in self.node_selector.items())


class AgentsConfig(_Read):
    """What the chart says about agents.

    Attributes:
        image: Reference of the agent's image.
        socket_directory: On the node.
        state_directory: On the node.
        device_plugin: Whether pods can ask for the device ``kvoffload.io/agent``.
        max_unavailable: Of a rolling update.
        pools: One DaemonSet each.
    """

    image: str
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    log_format: str = "json"
    socket_directory: str = "/run/kvoffload"
    state_directory: str = "/var/lib/kvoffload"
    device_plugin: bool = False  # a chart that does not say so knows none
    priority_class_name: str = ""
    max_unavailable: str | int = "5%"
    pools: tuple[Pool, ...] = ()


def parse_config(config_map: Json) -> AgentsConfig:
    """Return what a ConfigMap says.

    Raises:
        PoolsError: It does not say it in the right form, or a pool asks for the impossible.
    """
    try:
        text = config_map["data"][CONFIG_KEY]
        config = AgentsConfig.model_validate(yaml.safe_load(text))
    except (KeyError, TypeError) as error:
        raise PoolsError(f"the ConfigMap has no {CONFIG_KEY!r}") from error
    except yaml.YAMLError as error:
        raise PoolsError(f"{CONFIG_KEY} is no YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PoolsError(f"{CONFIG_KEY}: {where}: {first['msg']}") from error
    _check(config)
    return config


def _check(config: AgentsConfig) -> None:
    names = [pool.name for pool in config.pools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PoolsError(f"pools of the same name: {', '.join(twice)}")
    for pool in config.pools:
        where = f"pool {pool.name}"
        try:
            limit = parse_quantity(str(pool.resources["limits"]["memory"]))
            chunks = None if pool.host_memory is None else parse_quantity(pool.host_memory)
        except KeyError as error:
            raise PoolsError(
                f"{where}: resources.limits.memory must be set, since chunks are part of it"
            ) from error
        except QuantityError as error:
            raise PoolsError(f"{where}: {error}") from error
        if chunks is not None and chunks + AGENT_OVERHEAD_BYTES > limit:
            raise PoolsError(
                f"{where}: hostMemory {pool.host_memory} leaves less than "
                f"{AGENT_OVERHEAD_BYTES >> 20} MiB of resources.limits.memory "
                f"{pool.resources['limits']['memory']} for the agent itself: raise the limit or "
                "lower hostMemory"
            )

"""Kubelet's device plugin API, v1beta1: the messages that are used here, to and from bytes.

Field numbers are those of ``k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto``. What is not
listed is left out when read and never sent; protobuf allows both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

VERSION: Final = "v1beta1"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"
_PACKAGE: Final = "v1beta1"
# Message: field name, number, type; "*" marks a list, a capital letter another message.
_SCHEMA: Final[Mapping[str, tuple[tuple[str, int, str], ...]]] = {
    "Empty": (),
    "DevicePluginOptions": (("pre_start_required", 1, "bool"),),
    "RegisterRequest": (
        ("version", 1, "string"),
        ("endpoint", 2, "string"),
        ("resource_name", 3, "string"),
    ),
    "Device": (("ID", 1, "string"), ("health", 2, "string")),
    "ListAndWatchResponse": (("devices", 1, "*Device"),),
    "ContainerAllocateRequest": (("devices_ids", 1, "*string"),),
    "AllocateRequest": (("container_requests", 1, "*ContainerAllocateRequest"),),
    # A map is a list of pairs on the wire.
    "Env": (("key", 1, "string"), ("value", 2, "string")),
    "Mount": (
        ("container_path", 1, "string"),
        ("host_path", 2, "string"),
        ("read_only", 3, "bool"),
    ),
    "ContainerAllocateResponse": (("envs", 1, "*Env"), ("mounts", 2, "*Mount")),
    "AllocateResponse": (("container_responses", 1, "*ContainerAllocateResponse"),),
}


class MessageError(ValueError):
    """Bytes are not the message that they should be; for whoever sent them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a container gets: a folder of the node at a path of its own, and variables."""

    host_path: str
    container_path: str
    variables: Mapping[str, str] = field(default_factory=dict)


def registration(*, endpoint: str, resource: str) -> bytes:
    """Return a RegisterRequest.

    Args:
        endpoint: Name of the plugin's socket in kubelet's folder.
        resource: Such as ``kvoffload.io/agent``.
    """
    return _bytes("RegisterRequest", version=VERSION, endpoint=endpoint, resource_name=resource)


def options() -> bytes:
    """Return DevicePluginOptions: no call before a container starts, no preference."""
    return _bytes("DevicePluginOptions")


def devices(names: Iterable[str], *, healthy: bool) -> bytes:
    """Return a ListAndWatchResponse; every device has the same health, the agent's."""
    health = HEALTHY if healthy else UNHEALTHY
    device = _CLASSES["Device"]
    return _bytes(
        "ListAndWatchResponse", devices=[device(ID=name, health=health) for name in names]
    )


def asked(request: bytes) -> list[list[str]]:
    """Return the device names of each container in an AllocateRequest.

    Raises:
        MessageError: these bytes are none.
    """
    message = _CLASSES["AllocateRequest"]()
    try:
        message.ParseFromString(request)
    except DecodeError as error:
        raise MessageError(f"no AllocateRequest: {error}") from error
    return [list(container.devices_ids) for container in message.container_requests]


def granted(grants: Iterable[Grant]) -> bytes:
    """Return an AllocateResponse, one answer for each container, in their order."""
    response, env, mount = (
        _CLASSES[name] for name in ("ContainerAllocateResponse", "Env", "Mount")
    )
    return _bytes(
        "AllocateResponse",
        container_responses=[
            response(
                envs=[env(key=key, value=grant.variables[key]) for key in sorted(grant.variables)],
                # Engines connect to the socket, for which a mount need not be writable.
                mounts=[
                    mount(
                        container_path=grant.container_path,
                        host_path=grant.host_path,
                        read_only=True,
                    )
                ],
            )
            for grant in grants
        ],
    )


def _bytes(name: str, **fields: Any) -> bytes:
    return bytes(_CLASSES[name](**fields).SerializeToString())


def _classes() -> dict[str, Any]:
    """Return a class for each message of the schema, in a pool that nothing else shares."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="kvoffload/deviceplugin.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            plain = kind.removeprefix("*")
            described = message.field.add(
                name=field_name,
                number=number,
                label=kinds.LABEL_REPEATED if kind != plain else kinds.LABEL_OPTIONAL,
            )
            if plain in _SCHEMA:
                described.type = kinds.TYPE_MESSAGE
                described.type_name = f".{_PACKAGE}.{plain}"
            else:
                described.type = {"string": kinds.TYPE_STRING, "bool": kinds.TYPE_BOOL}[plain]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _SCHEMA
    }


_CLASSES: Final = _classes()

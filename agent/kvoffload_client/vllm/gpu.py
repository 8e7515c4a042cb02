"""The GPU that holds a worker's KV cache, if one does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvoffload_client.cuda import Device, DeviceUnavailableError
from kvoffload_client.cuda.driver import CudaDevice, Driver
from kvoffload_client.vllm.config import ConnectorConfigError


def device_of(kv_caches: Mapping[str, Any]) -> Device | None:
    """Return what copies this KV cache: its GPU, or None for the cores if it is in host memory.

    Args:
        kv_caches: the tensors as the engine hands them to ``register_kv_caches``, by layer.

    Raises:
        ConnectorConfigError: it is on something else, on several devices, or the GPU cannot be
            used from here.
    """
    devices = {str(tensor.device): tensor.device for tensor in _tensors(kv_caches.values())}
    if len(devices) != 1:
        raise ConnectorConfigError(
            f"the KV cache of one worker is on {', '.join(sorted(devices)) or 'no device'}; "
            "KVOffloadConnector copies from one"
        )
    (device,) = devices.values()
    if device.type == "cpu":
        return None

    import torch

    if device.type != "cuda" or torch.version.cuda is None:
        raise ConnectorConfigError(
            f"the KV cache is on {device}; KVOffloadConnector copies host memory and NVIDIA GPUs"
        )
    try:
        return CudaDevice(
            Driver(),
            int(device.index),
            engine_stream=lambda: int(torch.cuda.current_stream(device).cuda_stream),
        )
    except DeviceUnavailableError as error:
        raise ConnectorConfigError(
            f"KVOffloadConnector cannot copy from {device}: {error}"
        ) from error


def _tensors(caches: Iterable[Any]) -> Iterable[Any]:
    for cache in caches:
        yield from cache if isinstance(cache, list | tuple) else (cache,)

"""What copies a worker's KV cache follows from where it is; what nothing copies is one line."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from cuda.bindings import driver as binding

from kvoffload_client.vllm.config import ConnectorConfigError
from kvoffload_client.vllm.gpu import device_of


class Place(SimpleNamespace):
    """A torch.device."""

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


def on(kind: str, index: int | None = None) -> Any:
    return SimpleNamespace(device=Place(type=kind, index=index))


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """PyTorch is not installed here, and a GPU is not there."""
    fake = SimpleNamespace(version=SimpleNamespace(cuda="13.0"))
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_host_memory_is_copied_by_the_cores() -> None:
    assert device_of({"a": on("cpu"), "b": [on("cpu"), on("cpu")]}) is None


def test_a_cache_on_several_devices_is_refused() -> None:
    caches = {"a": on("cuda", 0), "b": [on("cuda", 1), on("cuda", 0)]}
    with pytest.raises(ConnectorConfigError, match=r"is on cuda:0, cuda:1; .* copies from one"):
        device_of(caches)


def test_a_cache_on_another_kind_of_device_is_refused(torch: SimpleNamespace) -> None:
    with pytest.raises(
        ConnectorConfigError, match=r"is on xpu:0; .* copies host memory and NVIDIA"
    ):
        device_of({"a": on("xpu", 0)})


def test_amd_gpus_which_torch_calls_cuda_too_are_refused(torch: SimpleNamespace) -> None:
    torch.version.cuda = None
    with pytest.raises(ConnectorConfigError, match="copies host memory and NVIDIA GPUs"):
        device_of({"a": on("cuda", 0)})


def test_a_gpu_that_cannot_be_used_is_one_line(
    torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "cuInit", lambda _flags: (binding.CUresult(100),))
    with pytest.raises(ConnectorConfigError, match=r"cannot copy from cuda:0: .*NO_DEVICE$"):
        device_of({"a": on("cuda", 0)})

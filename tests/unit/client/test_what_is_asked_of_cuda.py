"""What is never run here is at least there: the names of NVIDIA's binding that the driver uses."""

from __future__ import annotations

import ast
import inspect
import sys
from types import ModuleType

import pytest
from cuda.bindings import driver as binding

from kvoffload_client.cuda import driver
from kvoffload_client.cuda.device import DeviceUnavailableError
from kvoffload_client.cuda.driver import Driver


def uses(module: ModuleType) -> set[str]:
    """The functions called by name, and the dotted constants of the binding."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value
            if name.isidentifier() and name.startswith("cu") and name[2:3].isupper():
                found.add(name)
        if isinstance(node, ast.Attribute) and node.attr.startswith(("CU", "cu")):
            dotted = ast.unparse(node)
            for prefix in ("api.", "self.api.", "self._driver.api.", "self.driver.api."):
                if dotted.startswith(prefix):
                    found.add(dotted.removeprefix(prefix))
    return found


def test_every_name_is_in_the_binding() -> None:
    names = uses(driver)
    assert {"cuInit", "cuMemHostRegister", "CUstream_flags.CU_STREAM_NON_BLOCKING"} <= names
    for name in names:
        found: object = binding
        for part in name.split("."):
            assert hasattr(found, part), name
            found = getattr(found, part)


def test_the_older_form_of_a_batch_has_its_nine_arguments() -> None:
    assert driver._BATCH_VERSION == 12080
    assert len(driver._BATCH_FUNCTION._argtypes_) == 9


def test_without_the_binding_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DeviceUnavailableError, match=r"install kvoffload\[cuda\]"):
        Driver()


def test_without_a_driver_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(_flags: int) -> None:
        raise RuntimeError('"cuda" is an NVIDIA driver library')

    monkeypatch.setattr(binding, "cuInit", no_driver)
    with pytest.raises(DeviceUnavailableError, match="NVIDIA's driver cannot be used"):
        Driver()


def test_an_error_of_a_call_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "cuInit", lambda _flags: (binding.CUresult(100),))
    with pytest.raises(DeviceUnavailableError, match="cuInit: CUDA_ERROR_NO_DEVICE"):
        Driver()

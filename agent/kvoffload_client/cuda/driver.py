"""CUDA by NVIDIA's binding of the driver API (``cuda-bindings``); the only code that calls it.

The driver API keeps no "last error", so a refused call leaves nothing behind that a later call of
the engine's framework would find, as the runtime API does after ``cudaHostRegister`` (vLLM PR
#51081). Every call has the context that the framework uses, the device's primary one, made current
for its duration only.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from kvoffload_client.carrier import Addresses, DeviceError
from kvoffload_client.cuda import kernel
from kvoffload_client.cuda.device import DeviceUnavailableError
from kvoffload_client.cuda.plan import MAX_BATCH, Abilities

_log = logging.getLogger(__name__)

# The form of cuMemcpyBatchAsync that CUDA 12.8 defined, which newer drivers keep beside their own
# (sglang PR #23136): asking for it by version is what keeps its arguments right.
_BATCH_VERSION: Final = 12080
# The binding takes lists of Python objects here, which takes longer than copying what they name.
_BATCH_FUNCTION: Final = ctypes.CFUNCTYPE(
    ctypes.c_uint,
    ctypes.c_void_p,  # destinations
    ctypes.c_void_p,  # sources
    ctypes.c_void_p,  # sizes
    ctypes.c_size_t,  # how many
    ctypes.c_void_p,  # attributes
    ctypes.c_void_p,  # index of the first copy of each
    ctypes.c_size_t,  # how many attributes
    ctypes.c_void_p,  # index of what failed
    ctypes.c_void_p,  # stream
)


class Driver:
    """The binding, with errors as exceptions."""

    def __init__(self) -> None:
        """Load it.

        Raises:
            DeviceUnavailableError: the binding or NVIDIA's driver is not installed, or fails.
        """
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise DeviceUnavailableError(
                f"the package cuda-bindings is missing ({error}): install kvoffload[cuda]"
            ) from error
        self.api: Any = driver
        try:
            self.call("cuInit", 0)
        except DeviceError as error:
            raise DeviceUnavailableError(f"NVIDIA's driver cannot be used: {error}") from error

    def call(self, name: str, *arguments: object) -> Any:
        """Call a function; return its result, a tuple if there are several.

        Raises:
            DeviceError: it returned an error.
        """
        try:
            code, *values = getattr(self.api, name)(*arguments)
        except RuntimeError as error:  # the driver is too old to have it, or is not there at all
            raise DeviceError(f"{name}: {error}") from error
        self.check(name, code)
        return values[0] if len(values) == 1 else tuple(values)

    def check(self, name: str, code: Any) -> None:
        """Raise ``DeviceError`` unless ``code`` is success."""
        if int(code) == 0:
            return
        try:
            problem = str(self.api.CUresult(int(code)).name)
        except ValueError:  # newer than the binding
            problem = f"error {int(code)}"
        raise DeviceError(f"{name}: {problem}")


class CudaDevice:
    """A ``Device``: one GPU, by its primary context.

    Args:
        driver: the binding.
        ordinal: number of the GPU among those that this process sees.
        engine_stream: returns the handle of the stream on which the engine queues its work now;
            asked on the thread that calls ``mark``.

    Raises:
        DeviceUnavailableError: there is no such GPU, or it cannot be used.
    """

    def __init__(
        self, driver: Driver, ordinal: int, *, engine_stream: Callable[[], int] = lambda: 0
    ) -> None:
        self.driver = driver
        self._engine_stream = engine_stream
        self._idle_events: list[Any] = []
        try:
            self.handle = driver.call("cuDeviceGet", ordinal)
            self._context = driver.call("cuDevicePrimaryCtxRetain", self.handle)
        except DeviceError as error:
            raise DeviceUnavailableError(f"GPU {ordinal} cannot be used: {error}") from error
        self.batch_copy = _batch_function(driver)
        with self.current():
            self.kernel_function = self._load_kernel()
        self.abilities = Abilities(
            batch=self.batch_copy is not None, kernel=self.kernel_function is not None
        )

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current on this thread; what was current before is so again after.

        Raises:
            DeviceError: CUDA refuses.
        """
        self.driver.call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self.driver.call("cuCtxPopCurrent")

    def stream(self) -> CudaStream:
        """See ``Device``."""
        return CudaStream(self)

    def mark(self) -> CudaEvent:
        """See ``Device``."""
        with self.current():
            return self.record(self._engine_stream())

    def register(self, address: int, nbytes: int) -> None:
        """See ``Device``."""
        api = self.driver.api
        flags = api.CU_MEMHOSTREGISTER_PORTABLE | api.CU_MEMHOSTREGISTER_DEVICEMAP
        with self.current():
            self.driver.call("cuMemHostRegister", address, nbytes, flags)

    def unregister(self, address: int) -> None:
        """See ``Device``."""
        with self.current():
            self.driver.call("cuMemHostUnregister", address)

    def record(self, stream: Any) -> CudaEvent:
        """Record an event in a stream; the context is current."""
        api = self.driver.api
        try:
            event = self._idle_events.pop()
        except IndexError:
            flags = api.CUevent_flags.CU_EVENT_DISABLE_TIMING
            event = self.driver.call("cuEventCreate", int(flags))
        try:
            self.driver.call("cuEventRecord", event, stream)
        except DeviceError:
            self._idle_events.append(event)
            raise
        return CudaEvent(self.driver, event, self._idle_events)

    def _load_kernel(self) -> Any:
        """Return the copy kernel's function, or None where it cannot be used."""
        attribute = self.driver.api.CUdevice_attribute
        same = attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        try:
            if not self.driver.call("cuDeviceGetAttribute", same, self.handle):
                return None
            module = self.driver.call("cuModuleLoadData", kernel.ptx() + b"\0")
            return self.driver.call("cuModuleGetFunction", module, kernel.NAME)
        except (DeviceError, kernel.KernelUnavailableError) as error:
            _log.warning("small blocks are loaded without the GPU's copy kernel: %s", error)
            return None


class CudaEvent:
    """A ``Mark``."""

    def __init__(self, driver: Driver, event: Any, idle: list[Any]) -> None:
        self._driver = driver
        self._event = event
        self._idle = idle

    def reached(self) -> bool:
        """See ``Mark``."""
        (code,) = self._driver.api.cuEventQuery(self._event)
        if code == self._driver.api.CUresult.CUDA_ERROR_NOT_READY:
            return False
        self._driver.check("cuEventQuery", code)
        return True

    def close(self) -> None:
        """See ``Mark``; recording it again makes it mean the new place alone."""
        self._idle.append(self._event)


class CudaStream:
    """A ``Stream``."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._driver = device.driver
        api = self._driver.api
        with device.current():
            flags = api.CUstream_flags.CU_STREAM_NON_BLOCKING
            self._stream = self._driver.call("cuStreamCreate", int(flags))
        self._table = 0
        # Blocks that a batch reads may have just been written: read them in the stream's order.
        self._attributes = api.CUmemcpyAttributes()
        self._attributes.srcAccessOrder = (
            api.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        )

    def copy(self, src: int, dst: int, nbytes: int) -> None:
        """See ``Stream``."""
        with self._device.current():
            self._driver.call("cuMemcpyAsync", dst, src, nbytes, self._stream)

    def copy_batch(self, src: Addresses, dst: Addresses, lengths: Addresses) -> None:
        """See ``Stream``."""
        assert self._device.batch_copy is not None
        sources, targets, sizes = (np.ascontiguousarray(part) for part in (src, dst, lengths))
        first, failed = ctypes.c_size_t(0), ctypes.c_size_t(0)
        with self._device.current():
            code = self._device.batch_copy(
                targets.ctypes.data,
                sources.ctypes.data,
                sizes.ctypes.data,
                len(sizes),
                self._attributes.getPtr(),
                ctypes.addressof(first),
                1,
                ctypes.addressof(failed),
                int(self._stream),
            )
        if code:
            self._driver.check(f"cuMemcpyBatchAsync (copy {failed.value} of {len(sizes)})", code)

    def copy_kernel(self, src: Addresses, dst: Addresses, lengths: Addresses) -> None:
        """See ``Stream``; at most ``MAX_BATCH`` copies."""
        table = np.ascontiguousarray(np.stack((src, dst, lengths)))
        with self._device.current():
            if not self._table:
                size = 3 * 8 * MAX_BATCH
                self._table = int(self._driver.call("cuMemAlloc", size))
            # From memory that is not registered: read before the call returns. The stream's order
            # keeps the table until the kernel of the copies before has read it.
            self._driver.call(
                "cuMemcpyAsync", self._table, table.ctypes.data, table.nbytes, self._stream
            )
            self._driver.call(
                "cuLaunchKernel",
                self._device.kernel_function,
                *(kernel.GRID, 1, 1),
                *(kernel.THREADS, 1, 1),
                0,
                self._stream,
                ((self._table, len(lengths)), (ctypes.c_void_p, ctypes.c_int64)),
                0,
            )

    def record(self) -> CudaEvent:
        """See ``Stream``."""
        with self._device.current():
            return self._device.record(self._stream)

    def synchronize(self) -> None:
        """See ``Stream``."""
        with self._device.current():
            self._driver.call("cuStreamSynchronize", self._stream)


def _batch_function(driver: Driver) -> Any:
    """Return cuMemcpyBatchAsync, or None if the driver is older than CUDA 12.8."""
    try:
        address, _ = driver.call("cuGetProcAddress", b"cuMemcpyBatchAsync", _BATCH_VERSION, 0)
    except DeviceError:
        return None
    return _BATCH_FUNCTION(int(address)) if address else None

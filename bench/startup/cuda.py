"""Memory of the first accelerator, by CUDA's driver alone: no toolkit and no framework has to be in the image.

Beside `bench.startup.job` in the container; imports the standard library and nothing else.
"""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["Array", "Device"]


class Device:
    """The accelerator, with its primary context as that of this thread. Raises OSError where there is none."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        number, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(number), ctypes.c_int(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self._call("cuCtxSetCurrent", context)

    def empty(self, size: int) -> Array:
        """Memory of so many bytes. Raises OSError where there is no room."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return Array(self, address.value, size)

    def write(self, address: int, source: int, size: int) -> None:
        """Copy from memory of this process; done when it returns."""
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(source), ctypes.c_size_t(size))
        self._call("cuCtxSynchronize")

    def read(self, target: int, address: int, size: int) -> None:
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(target), ctypes.c_uint64(address), ctypes.c_size_t(size))

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, name)(*arguments):
            raise OSError(f"{name} of CUDA's driver answers {status}")


class Array:
    """Numbers of 16 bits in the accelerator's memory."""

    def __init__(self, device: Device, address: int, size: int) -> None:
        self._device, self._address = device, address
        self.nbytes = size

    def __len__(self) -> int:
        return self.nbytes // 2

    def put(self, tensor: Any) -> None:
        """Fill it from a contiguous array of this process. Raises ValueError for one of another size."""
        if tensor.nbytes != self.nbytes:
            raise ValueError(f"a tensor of {tensor.nbytes} bytes is not one of {self.nbytes}")
        self._device.write(self._address, tensor.ctypes.data, self.nbytes)

    def get(self) -> Any:
        """A copy in memory of this process."""
        import numpy

        array = numpy.empty(len(self), numpy.float16)
        self._device.read(array.ctypes.data, self._address, self.nbytes)
        return array

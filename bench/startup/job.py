"""The job that is started: imports, packages, a model, its checkpoint, one step. Runs in the container, by its Python.

`python3 job.py ORDER.json` goes through the stages of a start one after the other, as training programs do, and marks
each by `startup_events`, which lies beside it. `bench.startup.order` writes that. When the first step is
done the start is over; the checksum that the one line on standard output tells is made afterwards, over every byte that
was loaded. Then it waits for the end of its input.

Imports nothing of this project and nothing that the order does not name.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

BEGAN = time.time()
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import cuda  # type: ignore[import-not-found]  # noqa: E402  # both lie beside this file in the container
import startup_events  # type: ignore[import-not-found]  # noqa: E402

_STREAM_STEP = 8 << 20
_ROWS, _COLUMNS = 256, 2048  # of each matrix that takes part in the step
_SCALE = 1e-4


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        order: dict[str, Any] = json.load(file)
    events = startup_events.default_writer("job")
    events.instant("container", "exec", began=BEGAN)
    with events.begin("imports", "image"):
        _import(order["image_modules"])
    if order["install"]:
        with events.begin("dependencies", "install"):
            subprocess.run(order["install"], check=True, stdout=sys.stderr)
    if order["packages"]:
        sys.path.insert(0, order["packages"])
    with events.begin("imports", "dependencies"):
        _import(order["modules"])
    with events.begin("model"):
        parameters = _model(order)
    with events.begin("checkpoint", "load") as span:
        loaded = (_from_stream if order["stream"] else _from_files)(order, parameters)
        span.end(bytes=loaded)
    with events.begin("first_step"):
        loss = _step(order, parameters)
    ready = time.time()
    events.instant("ready")
    if marker := os.environ.get("IMAGEFS_READY"):
        with open(marker, "w", encoding="utf-8"):
            pass
    events.close(5.0)
    told = {"began": BEGAN, "ready": ready, "loss": loss, "bytes": loaded, "checksum": _checksum(parameters)}
    print(json.dumps(told), flush=True)
    sys.stdin.read()
    return 0


def _import(names: list[str]) -> None:
    for name in names:
        importlib.import_module(name)


# -- model and checkpoint ------------------------------------------------------------------------------------------
# order["shards"]: {path: {tensor: elements}}; parameters: {(path, tensor): array of 16-bit numbers}.


def _model(order: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """Every parameter in memory of its own, that of the accelerator where there is to be one."""
    empty = _memory(order)
    shards = order["shards"].items()
    return {(path, name): empty(count) for path, tensors in shards for name, count in tensors.items()}


def _memory(order: dict[str, Any]) -> Callable[[int], Any]:
    """Makes an array of so many numbers of 16 bits."""
    if order["gpu"]:
        device = cuda.Device()
        return lambda count: device.empty(2 * count)
    if order["framework"] == "torch":
        import torch

        return lambda count: torch.empty(count, dtype=torch.float16)
    import numpy

    return lambda count: numpy.empty(count, numpy.float16)


def _from_files(order: dict[str, Any], parameters: dict[tuple[str, str], Any]) -> int:
    """Load the shards by safetensors, one after the other. Bytes."""
    import safetensors

    loaded = 0
    for path, tensors in order["shards"].items():
        with safetensors.safe_open(path, "pt" if order["framework"] == "torch" else "np") as file:
            for name in tensors:
                loaded += _put(parameters[path, name], file.get_tensor(name))
    return loaded


def _from_stream(order: dict[str, Any], parameters: dict[tuple[str, str], Any]) -> int:
    """Read each shard from HDFS in one stream, and its tensors from that, in the order of the file. Bytes."""
    import hdfs_native
    import numpy

    client = hdfs_native.Client(order["stream"])
    loaded = 0
    for path, tensors in order["shards"].items():
        reader = client.read(path)
        data = bytearray()
        while piece := reader.read(_STREAM_STEP):
            data += piece
        begin = 8 + int.from_bytes(data[:8], "little")
        table = json.loads(data[8:begin])
        view = memoryview(data)
        for name in tensors:
            first, last = table[name]["data_offsets"]
            tensor: Any = numpy.frombuffer(view[begin + first : begin + last], numpy.float16)
            if order["framework"] == "torch":
                import torch

                tensor = torch.from_numpy(tensor)
            loaded += _put(parameters[path, name], tensor)
    return loaded


def _put(parameter: Any, tensor: Any) -> int:
    """Copy into the parameter. Bytes."""
    if isinstance(parameter, cuda.Array):
        parameter.put(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
    elif hasattr(parameter, "copy_"):
        parameter.copy_(tensor)
    else:
        parameter[:] = tensor
    return int(parameter.nbytes)


def _checksum(parameters: dict[tuple[str, str], Any]) -> str:
    """Of all bytes, and of the names that they belong to, whatever folder the shards were in."""
    found = 0
    for (path, name), parameter in parameters.items():
        array = _array(parameter)
        start = zlib.crc32(f"{os.path.basename(path)} {name}".encode())
        found ^= zlib.crc32(array.view("uint8"), start)
    return f"{found:08x}"


def _array(parameter: Any) -> Any:
    """As numpy has it, in memory of this process."""
    if isinstance(parameter, cuda.Array):
        return parameter.get()
    return parameter.numpy() if hasattr(parameter, "numpy") else parameter


# -- the first step ------------------------------------------------------------------------------------------------


def _step(order: dict[str, Any], parameters: dict[tuple[str, str], Any]) -> float:
    """One step of gradient descent of two layers made of the first matrices; its loss.

    The checkpoint's bytes are random, so each counts as a small whole number: as 16-bit numbers some would be none.
    """
    large = [_array(value) for value in parameters.values() if len(value) * 2 >= _ROWS * _COLUMNS][:2]
    if order["framework"] == "torch":
        return _torch_step(large)
    import numpy

    weights = [(one.view(numpy.uint8)[: _ROWS * _COLUMNS].reshape(_ROWS, _COLUMNS) - 127.5) * _SCALE for one in large]
    x = numpy.eye(_ROWS)[:16]
    hidden = numpy.maximum(x @ weights[0], 0)
    error = hidden @ weights[1].T - x
    gradient = hidden.T @ error
    weights[1] -= 0.1 * gradient.T
    return float((error**2).mean())


def _torch_step(large: list[Any]) -> float:
    import torch

    weights = [
        ((one[: _ROWS * _COLUMNS].float() - 127.5) * _SCALE).reshape(_ROWS, _COLUMNS).requires_grad_()
        for one in (torch.from_numpy(array.view("uint8")) for array in large)
    ]
    x = torch.eye(_ROWS)[:16]
    loss = ((torch.relu(x @ weights[0]) @ weights[1].T - x) ** 2).mean()
    loss.backward()
    torch.optim.SGD(weights, lr=0.1).step()
    value = float(loss.item())
    return value if math.isfinite(value) else -1.0


if __name__ == "__main__":
    sys.exit(main())

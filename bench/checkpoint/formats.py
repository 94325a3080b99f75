"""Saving and loading of a checkpoint by libraries: each function here is one that a user's program could have.

All of it runs in the process that `bench.checkpoint.program` forks for a run; importing this module brings torch and
the loaders. A loader answers the tensors that a job would go on with, in memory of their own. safetensors and
torch.load(mmap=True) answer views of a mapping instead, whose bytes come when something touches them, so there each
tensor is copied out, as to a device.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import fastsafetensors
import fsspec
import runai_model_streamer
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, FsspecReader, FsspecWriter

from bench.checkpoint.ranks import read_aligned, read_direct
from bench.checkpoint.state import COLUMNS, Place, Seen, State

__all__ = ["LOADERS", "SAVERS", "Tensors"]

Tensors = dict[str, torch.Tensor]


# -- safetensors --------------------------------------------------------------------------------------------------


def _safetensors_load(place: Place, _: State) -> Tensors:
    return {name: tensor.clone() for name, tensor in safetensors.torch.load_file(place.path).items()}


def _safetensors_load_api(place: Place, _: State) -> Tensors:
    """The header, then all tensors at once, each straight into its memory."""
    with place.source().open(place.path) as file:
        length = int.from_bytes(file.read(8), "little")
        table = json.loads(file.read(length))
        table.pop("__metadata__", None)
        found = {name: torch.empty(entry["shape"], dtype=torch.float16) for name, entry in table.items()}
        begin = 8 + length
        file.read_ranges_into((begin + entry["data_offsets"][0], found[name].numpy()) for name, entry in table.items())
    return found


def _safetensors_load_fsspec(place: Place, _: State) -> Tensors:
    loaded: Tensors = safetensors.torch.load(place.filesystem().cat_file(place.path))
    return loaded


def _safetensors_save(tensors: Tensors, place: Place, state: State) -> None:
    safetensors.torch.save_file(tensors, place.path, metadata=state.metadata)


def _safetensors_save_api(tensors: Tensors, place: Place, state: State) -> None:
    place.source().write_bytes(place.path, safetensors.torch.save(tensors, metadata=state.metadata))


def _safetensors_save_fsspec(tensors: Tensors, place: Place, state: State) -> None:
    place.filesystem().pipe_file(place.path, safetensors.torch.save(tensors, metadata=state.metadata))


# -- torch --------------------------------------------------------------------------------------------------------


def _torch_load(place: Place, _: State) -> Tensors:
    loaded: Tensors = torch.load(place.path, weights_only=True)
    return loaded


def _torch_load_mmap(place: Place, _: State) -> Tensors:
    loaded: Tensors = torch.load(place.path, weights_only=True, mmap=True)
    return {name: tensor.clone() for name, tensor in loaded.items()}


def _torch_load_from(file: Any) -> Tensors:
    with file:
        loaded: Tensors = torch.load(file, weights_only=True)
    return loaded


def _torch_load_api(place: Place, _: State) -> Tensors:
    return _torch_load_from(place.source().open(place.path))


def _torch_load_fsspec(place: Place, _: State) -> Tensors:
    return _torch_load_from(fsspec.open(place.url, **place.storage_options).open())


def _torch_save(tensors: Tensors, place: Place, _: State) -> None:
    torch.save(tensors, place.path)


def _torch_save_api(tensors: Tensors, place: Place, _: State) -> None:
    with place.source().open(place.path, "wb") as file:
        torch.save(tensors, file)


def _torch_save_fsspec(tensors: Tensors, place: Place, _: State) -> None:
    with fsspec.open(place.url, "wb", **place.storage_options) as file:
        torch.save(tensors, file)


# -- torch.distributed.checkpoint -----------------------------------------------------------------------------------


def _dcp_load(place: Place, state: State) -> Tensors:
    reader = FsspecReader(place.url, **place.storage_options) if place.root else FileSystemReader(place.path)
    found = {name: torch.empty((piece.pages, COLUMNS), dtype=torch.float16) for name, piece in state.pieces.items()}
    dcp.load(found, storage_reader=reader, no_dist=True)
    return found


def _dcp_save(tensors: Tensors, place: Place, _: State) -> None:
    writer = (
        FsspecWriter(place.url, sync_files=False, **place.storage_options)  # closing makes them durable
        if place.root
        else FileSystemWriter(place.path)
    )
    dcp.save(tensors, storage_writer=writer, no_dist=True)


# -- loaders that stream --------------------------------------------------------------------------------------------


def _runai_load(place: Place, state: State) -> Tensors:
    """Checked as they come, since a tensor's memory may be used again for a later one."""
    seen = Seen(state)
    with runai_model_streamer.SafetensorsStreamer() as streamer:
        streamer.stream_file(place.path)
        for name, tensor in streamer.get_tensors():
            seen.check(name, tensor.numpy())
    seen.done()
    return {}


def _fastsafetensors_load(place: Place, state: State) -> Tensors:
    """Checked before its buffer is closed, which takes the tensors along."""
    seen = Seen(state)
    loader = fastsafetensors.SafeTensorsFileLoader(fastsafetensors.SingleGroup(), torch.device("cpu"), nogds=True)
    loader.add_filenames({0: [place.path]})
    buffer = loader.copy_files_to_device()
    for name in list(loader.get_keys()):
        seen.check(name, buffer.get_tensor(name).numpy())
    seen.done()
    buffer.close()
    loader.close()
    return {}


def _direct_load(place: Place, state: State) -> Tensors:
    read_direct(place, state, list(state.pieces))
    return {}


def _direct_load_api(place: Place, state: State) -> Tensors:
    read_aligned(place, state)
    return {}


LOADERS: dict[str, Callable[[Place, State], Tensors]] = {
    "safetensors": _safetensors_load,
    "safetensors:api": _safetensors_load_api,
    "safetensors:fsspec": _safetensors_load_fsspec,
    "torch": _torch_load,
    "torch_mmap": _torch_load_mmap,
    "torch:api": _torch_load_api,
    "torch:fsspec": _torch_load_fsspec,
    "dcp": _dcp_load,
    "dcp:fsspec": _dcp_load,
    "runai": _runai_load,
    "fastsafetensors": _fastsafetensors_load,
    "direct": _direct_load,
    "direct:api": _direct_load_api,
}
"""By format, and by the way to the file where that is not a path. Empty is what was checked on the way."""

SAVERS: dict[str, Callable[[Tensors, Place, State], None]] = {
    "safetensors": _safetensors_save,
    "safetensors:api": _safetensors_save_api,
    "safetensors:fsspec": _safetensors_save_fsspec,
    "torch": _torch_save,
    "torch:api": _torch_save_api,
    "torch:fsspec": _torch_save_fsspec,
    "dcp": _dcp_save,
    "dcp:fsspec": _dcp_save,
}

"""Processes that load one checkpoint together: each holds one tensor at a time, whatever the size of the whole.

Each process checks its bytes as they come. The file is that of safetensors, whose layout `bench.checkpoint.state`
knows.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import numpy as np
from safetensors import safe_open

from bench.checkpoint.state import Place, Seen, State
from bench.harness.data import MIB

__all__ = ["RANKS", "read_aligned", "read_direct"]

_STEP = 8 * MIB


def _direct(place: Place, state: State, rank: int, ranks: int) -> int:
    """Other tensors than the other processes."""
    return read_direct(place, state, state.share(rank, ranks))


def _direct_all(place: Place, state: State, _rank: int, _ranks: int) -> int:
    return read_direct(place, state, list(state.pieces))


def read_direct(place: Place, state: State, names: list[str]) -> int:
    """These tensors by O_DIRECT, 8 MiB a read; answers their bytes."""
    seen, buffer = Seen(state, names), _buffer(state)
    descriptor = os.open(place.path, os.O_RDONLY | os.O_DIRECT)
    for name in names:
        piece = state.pieces[name]
        for begin in range(0, piece.length, _STEP):
            view = buffer[begin : min(begin + _STEP, piece.length)]
            if os.preadv(descriptor, [view], piece.offset + begin) != len(view):
                raise RuntimeError(f"{name} ends too early")
        seen.check(name, np.frombuffer(buffer, np.uint8, piece.length))
    os.close(descriptor)
    return seen.done()


def read_aligned(place: Place, state: State) -> int:
    """All tensors by a program without a mount, each at once into memory that is aligned to pages; their bytes."""
    seen, buffer = Seen(state), _buffer(state)
    with place.source().open(place.path) as file:
        for name, piece in state.pieces.items():
            if file.pread_into(buffer[: piece.length], piece.offset) != piece.length:
                raise RuntimeError(f"{name} ends too early")
            seen.check(name, np.frombuffer(buffer, np.uint8, piece.length))
    return seen.done()


def _mapped(place: Place, state: State, rank: int, ranks: int) -> int:
    """safetensors' own mapping, other tensors than the other processes, each copied out."""
    names = state.share(rank, ranks)
    seen = Seen(state, names)
    with safe_open(place.path, framework="numpy") as file:
        for name in names:
            seen.check(name, file.get_tensor(name))
    return seen.done()


def _fsspec(place: Place, state: State, _rank: int, _ranks: int) -> int:
    """All tensors, by a file system of its own in each process."""
    seen, buffer = Seen(state), _buffer(state)
    with place.filesystem().open(place.path) as file:
        for name, piece in state.pieces.items():
            file.seek(piece.offset)
            if file.readinto(buffer[: piece.length]) != piece.length:
                raise RuntimeError(f"{name} ends too early")
            seen.check(name, np.frombuffer(buffer, np.uint8, piece.length))
    return seen.done()


def _buffer(state: State) -> memoryview:
    """Room for the longest tensor, at the beginning of a page as O_DIRECT wants it."""
    return memoryview(mmap.mmap(-1, max(piece.length for piece in state.pieces.values())))


RANKS: dict[str, Callable[[Place, State, int, int], int]] = {
    "direct": _direct,
    "direct_all": _direct_all,
    "safetensors": _mapped,
    "fsspec": _fsspec,
}
"""The readers by their names: the bytes that a process has read, given its rank and how many there are."""

"""A checkpoint: where it is, and its tensors of 16 bits, whose rows are pages that carry their own number.

A tensor has the shape (pages, 2048), and each row begins with the number that its page has in the safetensors file, as
64 bits; the rest are the same random bytes in each row. So whoever has loaded a tensor can tell by one word of each
page whether it is all there and in its place. The header of that file is padded to whole pages, so that
`bench.harness.data.wrong_page` tells the same to whoever reads the file itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt

import stripefs
from bench.harness.data import PAGE, tensor_sizes

__all__ = ["COLUMNS", "Piece", "Place", "Seen", "State"]

COLUMNS = PAGE // 2
"""Numbers of 16 bits in a row."""

_ENTRY = 200
"""Bytes of the header that a tensor takes at most."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor: `pages` of the safetensors file from page `first` on."""

    first: int
    pages: int

    @property
    def offset(self) -> int:
        """In the safetensors file, in bytes."""
        return self.first * PAGE

    @property
    def length(self) -> int:
        return self.pages * PAGE


@dataclass(frozen=True)
class State:
    """The tensors of a checkpoint whose safetensors file has `size` bytes, whole pages."""

    size: int

    @cached_property
    def pieces(self) -> dict[str, Piece]:
        """By name, in the order of the file."""
        sizes = tensor_sizes(self.size)
        first = -(-(8 + _ENTRY * (len(sizes) + 2)) // PAGE)
        if rest := self.size - first * PAGE - sum(sizes.values()):
            sizes["zz.rest"] = rest  # the last one by name: that is how safetensors orders tensors of one type
        found = {}
        for name, length in sizes.items():
            found[name] = Piece(first, length // PAGE)
            first += length // PAGE
        return found

    @property
    def length(self) -> int:
        """Bytes of all tensors."""
        return sum(piece.length for piece in self.pieces.values())

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata with which the header of safetensors ends at the end of a page."""
        begin = next(iter(self.pieces.values())).offset
        table: dict[str, object] = {"__metadata__": {"padding": ""}}
        for name, piece in self.pieces.items():
            start = piece.offset - begin
            shape = [piece.pages, COLUMNS]
            table[name] = {"dtype": "F16", "shape": shape, "data_offsets": [start, start + piece.length]}
        taken = 8 + len(json.dumps(table, separators=(",", ":")))
        return {"padding": " " * (begin - taken)}

    def make(self) -> dict[str, npt.NDArray[np.float16]]:
        """The tensors, in memory."""
        words: npt.NDArray[np.uint64] = np.random.default_rng(7).integers(0, 1 << 63, PAGE // 8, dtype=np.uint64)
        made = {}
        for name, piece in self.pieces.items():
            rows = np.tile(words, (piece.pages, 1))
            rows[:, 0] = np.arange(piece.first, piece.first + piece.pages, dtype=np.uint64)
            made[name] = rows.view(np.float16)
        return made

    def share(self, rank: int, ranks: int) -> list[str]:
        """Those that `rank` of so many loads when each loads others, in the order of the file."""
        return list(self.pieces)[rank::ranks]

    def complaint(self, name: str, rows: npt.NDArray[np.generic]) -> str:
        """The reason for which this cannot be the tensor `name`, "" when every page is in its place. rows:
        contiguous.
        """
        piece = self.pieces[name]
        numbers = rows.reshape(-1).view(np.uint64)[:: PAGE // 8]
        if len(numbers) != piece.pages:
            return f"{name} came back with {len(numbers)} of {piece.pages} pages"
        wrong = numbers != np.arange(piece.first, piece.first + piece.pages, dtype=np.uint64)
        return f"{name}: {np.count_nonzero(wrong)} of {piece.pages} pages are wrong" if wrong.any() else ""


class Seen:
    """Checks tensors as they come. All methods raise RuntimeError for what is wrong or missing."""

    def __init__(self, state: State, wanted: Iterable[str] = ()) -> None:
        """wanted: the names that are to come, all of the state where none is given."""
        self._state = state
        self._left = set(wanted) or set(state.pieces)
        self.bytes = 0

    def check(self, name: str, rows: npt.NDArray[np.generic]) -> None:
        if complaint := self._state.complaint(name, rows):
            raise RuntimeError(complaint)
        self._left.discard(name)
        self.bytes += self._state.pieces[name].length

    def check_all(self, tensors: Mapping[str, npt.NDArray[np.generic]]) -> None:
        for name, rows in tensors.items():
            self.check(name, rows)

    def done(self) -> int:
        """The bytes of all that came, once nothing is missing."""
        if self._left:
            raise RuntimeError(f"{len(self._left)} tensors did not come, {min(self._left)} among them")
        return self.bytes


@dataclass(frozen=True, slots=True)
class Place:
    """`path` is one of the machine, or with a `root` one in the source at this URL, which is reached with `options`."""

    path: str
    root: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """For fsspec, which is given `storage_options` with it."""
        return f"stripefs://{self.path}"

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"root": self.root, **self.options}

    def source(self) -> stripefs.FileSystem:
        return stripefs.connect(self.root, **self.options)

    def filesystem(self) -> Any:
        return fsspec.filesystem("stripefs", **self.storage_options)

    def connect(self) -> None:
        """Reach the source, if there is one, as a mount has by the time it is used."""
        if self.root:
            self.source().stat("/")

"""The bytes of benchmarks' files: pages that carry their own number, so that every reader can check what it got.

Page p (4096 bytes at offset 4096 * p) begins with p as a little-endian 64-bit number; the rest is the same random
bytes in every page of a chunk, which nothing on the way compresses. The tensors of a safetensors file are laid over
whole pages, behind a header that is padded to whole pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = [
    "CHUNK",
    "GIB",
    "MIB",
    "PAGE",
    "DataFile",
    "Extent",
    "contents",
    "tensor_elements",
    "tensor_sizes",
    "wrong_page",
]

PAGE = 4096
MIB = 1 << 20
GIB = 1 << 30
CHUNK = 8 * MIB


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file to be made on the cluster. `size` and `block_size` in bytes, whole multiples of CHUNK."""

    name: str
    size: int
    block_size: int
    replication: int = 1
    safetensors: bool = False

    @property
    def path(self) -> str:
        return f"/bench/{self.name}"


@dataclass(frozen=True, slots=True)
class Extent:
    """`length` > 0 bytes at `offset` of a file, whole on each of `hosts`."""

    offset: int
    length: int
    hosts: tuple[str, ...]


def contents(file: DataFile, begin: int, end: int) -> Iterator[bytes]:
    """The bytes [begin, end) of `file` in pieces of CHUNK; both are multiples of it."""
    words: npt.NDArray[np.uint64] = np.random.default_rng(7).integers(0, 1 << 63, CHUNK // 8, dtype=np.uint64)
    pages = words.reshape(-1, PAGE // 8)
    head = _safetensors_header(file.size) if file.safetensors else b""
    for start in range(begin, end, CHUNK):
        first = start // PAGE
        pages[:, 0] = np.arange(first, first + len(pages), dtype=np.uint64)
        chunk = pages.tobytes()
        yield head + chunk[len(head) :] if start == 0 else chunk


def wrong_page(offset: int, data: bytes | bytearray | memoryview) -> str:
    """The reason for which `data`, read at `offset`, cannot be right; "" when the last page that begins in it carries
    its number.

    The last, because the first may be a header.
    """
    page = (offset + len(data) - 8) // PAGE
    place = page * PAGE - offset
    if place < 0:
        return ""
    found = int.from_bytes(data[place : place + 8], "little")
    return "" if found == page else f"page {page} came back as page {found}"


def tensor_sizes(size: int) -> dict[str, int]:
    """Names and bytes of the tensors of a safetensors file of about `size` bytes, in the order of the file.

    The proportions are those of a language model of 1.1 billion parameters in 16 bits (hidden 2048, inner 5632,
    vocabulary 32,000, or 4,000 in a file below 1 GiB), with as many layers as fit; whole pages each. Below 128 MiB all
    matrices have a sixteenth of that.
    """
    layer = {
        "input_layernorm": PAGE,
        "mlp.down_proj": 22 * MIB,
        "mlp.gate_proj": 22 * MIB,
        "mlp.up_proj": 22 * MIB,
        "post_attention_layernorm": PAGE,
        "self_attn.k_proj": 2 * MIB,
        "self_attn.o_proj": 8 * MIB,
        "self_attn.q_proj": 8 * MIB,
        "self_attn.v_proj": 2 * MIB,
    }
    vocabulary = 125 * MIB if size >= GIB else 16 * MIB
    ends = {"lm_head.weight": vocabulary, "model.embed_tokens.weight": vocabulary, "model.norm.weight": PAGE}
    if size < 128 * MIB:
        layer, ends = ({name: max(PAGE, length // 16) for name, length in part.items()} for part in (layer, ends))
    layers = (size - MIB - sum(ends.values())) // sum(layer.values())
    if layers < 1:
        raise ValueError(f"a model has no layer in {size} bytes")
    names = {f"model.layers.{i}.{part}.weight": length for i in range(layers) for part, length in layer.items()}
    return dict(sorted({**names, **ends}.items()))


def tensor_elements(size: int) -> dict[str, int]:
    """All tensors of a `DataFile` of so many bytes that is one of safetensors, and how many numbers each has."""
    return {name: (end - begin) // 2 for name, (begin, end) in _placed(size)[1].items()}


def _safetensors_header(size: int) -> bytes:
    """The length, the JSON and its padding, whole pages long."""
    length, places = _placed(size)
    table = {
        name: {"dtype": "F16", "shape": [(end - begin) // 2], "data_offsets": [begin, end]}
        for name, (begin, end) in places.items()
    }
    text = json.dumps(table, separators=(",", ":")).encode()
    return (length - 8).to_bytes(8, "little") + text.ljust(length - 8)


def _placed(size: int) -> tuple[int, dict[str, tuple[int, int]]]:
    """Bytes of the header, and where each tensor lies behind it. The last one takes what is left of the file."""
    tensors = tensor_sizes(size)
    length = -(-(8 + 200 * (len(tensors) + 1)) // PAGE) * PAGE
    places: dict[str, tuple[int, int]] = {}
    begin = 0
    for name, count in tensors.items():
        places[name] = (begin, begin + count)
        begin += count
    if rest := size - length - begin:
        places["zz.rest"] = (begin, begin + rest)
    return length, places

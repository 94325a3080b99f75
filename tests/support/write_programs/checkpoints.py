"""Libraries that save checkpoints: the real ones, or their exact patterns of system calls."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.support.write_programs.place import MIB, Expected, Place, opened, payload, write_all

__all__ = [
    "close_and_replace",
    "distributed_checkpoint",
    "numpy_memmap",
    "numpy_save",
    "numpy_savez",
    "safetensors",
    "torch_save",
]


def numpy_save(place: Place) -> Expected:
    """numpy writes the data through a duplicate of the descriptor, whose close comes before the file's."""
    expected = {}
    for name, count in (("small.npy", 300), ("large.npy", 5 * MIB // 2 + 3)):
        array = np.arange(count, dtype="<f8")
        np.save(place.folder / name, array)
        kept = io.BytesIO()
        np.save(kept, array)
        expected[name] = kept.getvalue()
        assert np.array_equal(np.load(place.folder / name, mmap_mode="r"), array)
    return expected


def numpy_savez(place: Place) -> Expected:
    """A zip file whose headers are patched after each member."""
    arrays = {"a": np.arange(200_000, dtype="<i4"), "b": np.ones(3)}
    np.savez(place.folder / "arrays.npz", **arrays)  # type: ignore[arg-type]
    with np.load(place.folder / "arrays.npz") as loaded:
        assert all(np.array_equal(loaded[name], array) for name, array in arrays.items())
    return {"arrays.npz": (place.folder / "arrays.npz").read_bytes()}


def numpy_memmap(place: Place) -> Expected:
    """A mapping that is written from its end to its begin."""
    mapped = np.memmap(place.folder / "mapped", dtype="<u4", mode="w+", shape=(300_000,))
    for start in range(280_000, -1, -20_000):
        mapped[start : start + 20_000] = np.arange(start, start + 20_000)
    mapped.flush()
    del mapped
    return {"mapped": np.arange(300_000, dtype="<u4").tobytes()}


def safetensors(place: Place) -> Expected:
    """A temporary file: O_RDWR, ftruncate to its full size, written in order, renamed while it is open. Twice."""
    expected = {}
    for version in (1, 2):
        tensors = {"a": np.full(3 * MIB, version, "<f4"), "b": np.arange(5 * version, dtype="<i8")}
        save_file(tensors, place.folder / "model.safetensors")
        save_file(tensors, place.aside / "model.safetensors")
        expected["model.safetensors"] = (place.aside / "model.safetensors").read_bytes()
        loaded = load_file(place.folder / "model.safetensors")
        assert all(np.array_equal(loaded[name], tensor) for name, tensor in tensors.items())
    return expected


def torch_save(place: Place) -> Expected:
    """PyTorch's writer: a zip file without seeks, data at multiples of 64, the directory at the end."""
    out, directory = io.BytesIO(), b""
    members = [("archive/data.pkl", b"pickle" * 40), ("archive/byteorder", b"little")]
    members += [(f"archive/data/{number}", payload(f"tensor{number}", 1_500_000 + number)) for number in range(6)]
    pieces = []
    for name, data in members:
        offset, crc = out.tell(), zlib.crc32(data)
        padding = -(offset + 30 + len(name) + 4) % 64
        extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
        facts = crc.to_bytes(4, "little") + len(data).to_bytes(4, "little") * 2
        lengths = len(name).to_bytes(2, "little") + len(extra).to_bytes(2, "little")
        header = b"PK\3\4" + bytes(10) + facts + lengths + name.encode() + extra
        directory += b"PK\1\2" + bytes(12) + facts + lengths[:2] + bytes(12) + offset.to_bytes(4, "little")
        directory += name.encode()
        for piece in (header, data):
            out.write(piece)
            pieces.append(piece)
    count = len(members).to_bytes(2, "little") * 2
    end = b"PK\5\6" + bytes(4) + count + len(directory).to_bytes(4, "little") + out.tell().to_bytes(4, "little")
    pieces += [directory, end + bytes(2)]
    with opened(place.folder / "model.pt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        for piece in pieces:
            write_all(descriptor, piece)
    with zipfile.ZipFile(place.folder / "model.pt") as archive:
        for name, data in members:
            assert archive.read(name) == data
    return {"model.pt": b"".join(pieces)}


def distributed_checkpoint(place: Place) -> Expected:
    """torch.distributed.checkpoint's FileSystemWriter: ranks in threads, fsync each, then the metadata by a rename."""
    step = place.folder / "step-100"
    os.makedirs(step, exist_ok=True)
    expected: Expected = {}

    def save(rank: int) -> None:
        for part in range(2):
            name = f"__{rank}_{part}.distcp"
            items = [payload(f"{rank}{part}{item}", 400_000) for item in range(5)]
            with open(step / name, "wb") as stream:
                for item in items:
                    before = stream.tell()
                    stream.write(item)
                    assert stream.tell() - before == len(item)
                stream.flush()
                os.fsync(stream.fileno())
            expected[f"step-100/{name}"] = b"".join(items)

    with ThreadPoolExecutor(4) as ranks:
        list(ranks.map(save, range(4)))
    for version in (1, 2):  # a second checkpoint into the same place replaces the metadata
        metadata = payload(f"metadata{version}", 30_000)
        with open(step / ".metadata.tmp", "wb") as stream:
            stream.write(metadata)
            os.fsync(stream.fileno())
        if (step / ".metadata").exists():
            os.remove(step / ".metadata")
        os.rename(step / ".metadata.tmp", step / ".metadata")
        expected["step-100/.metadata"] = metadata
    assert sorted(os.listdir(step)) == sorted(Path(name).name for name in expected)
    return expected


def close_and_replace(place: Place) -> Expected:
    """Written under another name and renamed over the last one, right after close; readers see one or the other."""
    data = b""
    for version in range(3):
        data = payload(f"v{version}", 9 * MIB + version)
        with open(place.folder / "ckpt.tmp", "wb") as file:
            file.write(data)
        os.replace(place.folder / "ckpt.tmp", place.folder / "ckpt")
        assert (place.folder / "ckpt").read_bytes() == data
        assert not (place.folder / "ckpt.tmp").exists()
    return {"ckpt": data}

"""torch, safetensors, torch.distributed.checkpoint, run:ai's streamer and fastsafetensors, the real ones: through a
mount, and without one. Each test is a program of its own, since importing torch takes seconds and hundreds of MB."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.loaders.conftest import Program
from tests.support.written_mounts import writable
from tests.tools.mounts import MIB, Mounts
from tests.unit.stripefs.api.test_python_docs import EXAMPLES, here, needs_torch

pytestmark = [pytest.mark.slow, pytest.mark.mount, pytest.mark.root]

STATE = """
import sys
import torch

def state():
    torch.manual_seed(1)
    shared = torch.randn(100, 100)
    return {
        "large": torch.randn(700, 1000),
        "half": torch.randn(999, 1001).to(torch.bfloat16),
        "numbers": torch.arange(250_000).reshape(500, 500),
        "flags": torch.rand(777) > 0.5,
        "scalar": torch.tensor(3.5),
        "nothing": torch.empty(0, 7),
        "shared": shared,
        "of it": shared[10:20],
    }

def plain():
    "Tensors that own their memory, as safetensors wants them."
    return {name: tensor.clone() for name, tensor in state().items()}

def same(got, wanted=None):
    wanted = wanted if wanted is not None else state()
    assert got.keys() == wanted.keys(), (got.keys(), wanted.keys())
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name
"""

THROUGH_A_MOUNT = (
    STATE
    + """
import os
import safetensors.torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

os.chdir(sys.argv[1])
for _ in range(2):  # the second time in the place of what is there
    torch.save(state(), "model.pt")
    same(torch.load("model.pt", weights_only=True))
    same(torch.load("model.pt", weights_only=True, mmap=True))
    with open("model.pt", "rb") as file:
        same(torch.load(file, weights_only=True))

    safetensors.torch.save_file(plain(), "model.safetensors")
    same(safetensors.torch.load_file("model.safetensors"))
    with safetensors.safe_open("model.safetensors", framework="pt") as file:
        same({name: file.get_tensor(name) for name in file.keys()})
        assert torch.equal(file.get_slice("large")[100:200, 7:9], state()["large"][100:200, 7:9])

    dcp.save(state(), storage_writer=FileSystemWriter("step"), no_dist=True)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state().items()}
    dcp.load(loaded, storage_reader=FileSystemReader("step"), no_dist=True)
    same(loaded)
print(sorted(os.listdir()))
"""
)

STREAMED = (
    STATE
    + """
import fastsafetensors
import runai_model_streamer

path = sys.argv[1]
with runai_model_streamer.SafetensorsStreamer() as streamer:
    streamer.stream_file(path)
    same({name: tensor.clone() for name, tensor in streamer.get_tensors()})

loader = fastsafetensors.SafeTensorsFileLoader(fastsafetensors.SingleGroup(), torch.device("cpu"), nogds=True)
loader.add_filenames({0: [path]})
buffer = loader.copy_files_to_device()
same({name: buffer.get_tensor(name).clone() for name in loader.get_keys()})
buffer.close()
loader.close()
"""
)

WITHOUT_A_MOUNT = (
    STATE
    + """
import json
import fsspec
import safetensors.torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FsspecReader, FsspecWriter
import stripefs

place = sys.argv[1]
options = {"root": place, "layout": "striped"}
source = stripefs.connect(place, layout="striped")

with source.open("model.pt", "wb") as file:
    torch.save(state(), file)
with source.open("model.pt") as file:
    same(torch.load(file, weights_only=True))
with fsspec.open("stripefs://step/model.pt", "wb", **options) as file:
    torch.save(state(), file)
with fsspec.open("stripefs://step/model.pt", **options) as file:
    same(torch.load(file, weights_only=True))

source.write_bytes("model.safetensors", safetensors.torch.save(plain()))
same(safetensors.torch.load(source.read_bytes("model.safetensors")))

for _ in range(2):
    dcp.save(state(), storage_writer=FsspecWriter("stripefs://dcp", sync_files=False, **options), no_dist=True)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state().items()}
    dcp.load(loaded, storage_reader=FsspecReader("stripefs://dcp", **options), no_dist=True)
    same(loaded)
print(sorted(entry.name for entry in source.scandir("dcp")))
"""
)

LOADED_BY_FORKS = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset
import stripefs

class Rows(Dataset):
    def __init__(self, place):
        self.file = stripefs.connect(place).open("rows")
    def __len__(self):
        return self.file.size // 4096
    def __getitem__(self, number):
        row = self.file.pread(offset=number * 4096, length=4096)
        return torch.frombuffer(bytearray(row), dtype=torch.int64)[0]

place = sys.argv[1]
with open(f"{place}/rows", "wb") as file:
    for number in range(2000):
        file.write(number.to_bytes(8, "little") * 512)
rows = Rows(place)
assert rows[5] == 5  # the parent has read before it forks
loader = DataLoader(rows, batch_size=100, num_workers=2, multiprocessing_context="fork")
assert torch.equal(torch.cat(list(loader)), torch.arange(2000))
"""


def test_libraries_save_and_load_through_a_mount(mounts: Mounts, program: Program) -> None:
    mounted = mounts.start(writable(mounts, layout="striped", unit=MIB)).wait_ready()
    assert program(THROUGH_A_MOUNT, mounted.path) == "['model.pt', 'model.safetensors', 'step']\n"
    again = mounts.mount()
    program(STREAMED, again.path / "model.safetensors")


def test_libraries_save_and_load_without_a_mount(tmp_path: Path, program: Program) -> None:
    place = tmp_path / "source"
    place.mkdir()
    assert program(WITHOUT_A_MOUNT, place) == "['.metadata', '__0_0.distcp']\n"


def test_the_examples_of_the_docs_and_a_loader_that_forks(tmp_path: Path, program: Program) -> None:
    """The examples of docs/python.md that need torch, in their order; then processes of a loader read by one file."""
    examples = [example for example in EXAMPLES if needs_torch(example)]
    assert len(examples) >= 3
    program("\n".join([*(here(example, tmp_path) for example in examples), LOADED_BY_FORKS]), tmp_path)

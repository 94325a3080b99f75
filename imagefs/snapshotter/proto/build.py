"""The build backend of this distribution: setuptools, after `snapshots_pb2` was made of `snapshots.proto`.

The module is made beside its source, where an editable installation and a wheel both find it. `python -m
imagefs.snapshotter.proto.build` makes it anew.

The module holds the compiled description of the messages and makes their classes when it is loaded. The compiler's own
Python code would refuse every protobuf that is older than the compiler, so a wheel would need whatever version was the
latest when it was built. A source distribution has the source alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "generate",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_FOLDER = Path(__file__).parent
_ROOT = _FOLDER.parents[2]


_MODULE = '''"""Classes of the messages in snapshots.proto, made by `imagefs.snapshotter.proto.build`."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf import empty_pb2, field_mask_pb2, timestamp_pb2  # which the file imports

_SET = descriptor_pb2.FileDescriptorSet.FromString({descriptors!r})
_POOL = descriptor_pool.Default()
_POOL.AddSerializedFile(_SET.file[0].SerializeToString())
_FILE = _POOL.FindFileByName(_SET.file[0].name)
for _message in _FILE.message_types_by_name.values():
    globals()[_message.name] = message_factory.GetMessageClass(_message)
for _enum in _FILE.enum_types_by_name.values():
    globals().update({{value.name: value.number for value in _enum.values}})
'''


def generate() -> None:
    """Make `snapshots_pb2.py` and its types. Raises CalledProcessError; grpcio-tools brings the compiler."""
    source = (_FOLDER / "snapshots.proto").relative_to(_ROOT)
    with tempfile.NamedTemporaryFile() as output:
        compiler = [sys.executable, "-m", "grpc_tools.protoc", "-I."]
        command = [*compiler, f"--descriptor_set_out={output.name}", "--pyi_out=.", str(source)]
        subprocess.run(command, check=True, cwd=_ROOT, env={**os.environ, "PYTHONWARNINGS": "ignore"})
        descriptors = Path(output.name).read_bytes()
    (_FOLDER / "snapshots_pb2.py").write_text(_MODULE.format(descriptors=descriptors))


def build_wheel(*args: Any, **kwargs: Any) -> str:
    """PEP 517."""
    generate()
    return str(build_meta.build_wheel(*args, **kwargs))


def build_editable(*args: Any, **kwargs: Any) -> str:
    """PEP 660."""
    generate()
    return str(build_meta.build_editable(*args, **kwargs))


if __name__ == "__main__":
    generate()

"""The golden file of the key of a dependency snapshot (docs/deps.md), with every component.

`python -m tests.golden.deps` writes it anew, which is right only together with a new version of the key: every snapshot
that is stored is then found no more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from imagefs.deps.key import Key

__all__ = ["DOCUMENTS", "FOLDER", "KEY"]

FOLDER = Path(__file__).parent

KEY = Key({
    "namespace": "",
    "base_image": "",
    "system": {"os": "Linux", "architecture": "x86_64", "cpu_level": "x86-64-v3"},
    "libc": {"name": "glibc", "version": "2.36"},
    "python": {
        "executable": "/usr/bin/python3",
        "implementation": "cpython",
        "version": "3.11.2",
        "soabi": "cpython-311-x86_64-linux-gnu",
    },
    "accelerator": {"cuda": "12.4", "driver": ""},
    "installers": {"pip": "23.0.1"},
    "command": ["python3", "-m", "pip", "install", "--target", "/opt/deps", "-r", "requirements.txt"],
    "files": {"requirements.txt": "5f" * 32},
    "lock": [["numpy", "1.26.4", "wheel", ["sha256:" + "6e" * 32], ""]],
    "build": {"variables": {"CFLAGS": "-O2"}, "compilers": {"cc": "cc (Debian 12.2.0) 12.2.0"}},
    "environment": {"CUDAARCHS": None},
    "indexes": {"index-url": ["https://pypi.example/simple"]},
    "settings": {},
    "targets": [["/opt/deps", 0, 0, "022"]],
    "salt": "",
    "epoch": "",
    "unpinned": False,
})  # fmt: skip

DOCUMENTS: dict[str, Callable[[], bytes]] = {"deps-key.json": KEY.to_json}

if __name__ == "__main__":
    for name, make in DOCUMENTS.items():
        (FOLDER / name).write_bytes(make())

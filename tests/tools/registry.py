"""Debian's docker-registry on loopback, with a folder of its own, ended with its block."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.images.layers import layout

__all__ = ["HTPASSWD", "push_image", "running_registry"]

HTPASSWD = "ann:$2y$05$7YDtEXoYPCeGd8C.WXkAIu/o9cNH/OVBrhKwROlNLXNkZ/0AGxDTa\n"
"""The user ann with the password secret."""


@contextmanager
def running_registry(
    folder: Path, *, delete: bool = True, htpasswd: bool = False, tls: tuple[Path, Path] | None = None
) -> Iterator[str]:
    """HOST:PORT of a registry that keeps what it has below `folder`. It speaks plain http, or https where `tls` names
    the files of a certificate and its key."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    config: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": delete}},
        "http": {"addr": address},
    }
    if tls is not None:
        config["http"]["tls"] = {"certificate": str(tls[0]), "key": str(tls[1])}
    if htpasswd:
        (folder / "htpasswd").write_text(HTPASSWD)
        config["auth"] = {"htpasswd": {"realm": "r", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen(["docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        _await(address)
        yield address
    finally:
        running.terminate()
        running.wait()


def push_image(folder: Path, address: str, name: str, layers: Sequence[bytes], *, user: str = "", **config: Any) -> str:
    """Store a container image of these archives as NAME:TAG; its reference. `folder` holds its layout. user:
    USER:PASSWORD, "" for none."""
    made = layout(folder / f"layout-{name.replace('/', '-').replace(':', '-')}", layers, config=config)
    target = ["--dest-tls-verify=false", *([f"--dest-creds={user}"] if user else []), f"docker://{address}/{name}"]
    subprocess.run(["skopeo", "copy", "--quiet", f"oci:{made}:app", *target], check=True, capture_output=True)
    return f"{address}/{name}"


def _await(address: str) -> None:
    """Until somebody listens there."""
    deadline, (host, port) = time.monotonic() + 30, address.split(":")
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port))):
            return
        assert time.monotonic() < deadline, "the registry does not answer"
        time.sleep(0.05)

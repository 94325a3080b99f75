"""Debian's docker-registry on loopback, with a folder of its own."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.images.layers import layout
from tests.support.waiting import eventually
from tests.tools.listening import accepts, free_port

__all__ = ["HTPASSWD", "Registry", "push_image", "running_registry"]

HTPASSWD = "ann:$2y$05$7YDtEXoYPCeGd8C.WXkAIu/o9cNH/OVBrhKwROlNLXNkZ/0AGxDTa\n"
"""The user ann with the password secret."""


class Registry:
    """One that keeps what it has below `folder`. It speaks plain http, or https where `tls` names the files of a
    certificate and its key. delete: blobs may be deleted. htpasswd: HTPASSWD is asked for."""

    def __init__(
        self, folder: Path, *, delete: bool = True, htpasswd: bool = False, tls: tuple[Path, Path] | None = None
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        config: dict[str, Any] = {
            "version": 0.1,
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": delete}},
            "http": {"addr": self.address},
        }
        if tls is not None:
            config["http"]["tls"] = {"certificate": str(tls[0]), "key": str(tls[1])}
        if htpasswd:
            (folder / "htpasswd").write_text(HTPASSWD)
            config["auth"] = {"htpasswd": {"realm": "r", "path": str(folder / "htpasswd")}}
        (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            command = ["docker-registry", "serve", str(self.folder / "config.yml")]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        eventually(lambda: accepts(self._port), "the registry")

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def push(self, name: str, layers: Sequence[bytes], **config: Any) -> str:
        """Store an image of these archives; its reference. config: of the image, such as Env."""
        return push_image(self.folder, self.address, name, layers, **config)

    def layers(self, name: str) -> list[str]:
        """Digests of the layers of an image that was pushed."""
        folder = _layout(self.folder, name)
        manifest = json.loads((folder / "index.json").read_text())["manifests"][0]["digest"]
        document = json.loads((folder / "blobs" / manifest.replace(":", "/")).read_text())
        return [one["digest"] for one in document["layers"]]

    def requested(self) -> str:
        """The log of all requests so far."""
        return (self.folder / "log").read_text()


@contextlib.contextmanager
def running_registry(folder: Path, **options: Any) -> Iterator[str]:
    """HOST:PORT of a registry with these options while the block runs."""
    with contextlib.closing(Registry(folder, **options)) as made:
        yield made.address


def push_image(folder: Path, address: str, name: str, layers: Sequence[bytes], *, user: str = "", **config: Any) -> str:
    """Store a container image of these archives as NAME:TAG; its reference. `folder` holds its layout. user:
    USER:PASSWORD, "" for none."""
    shutil.rmtree(place := _layout(folder, name), ignore_errors=True)
    made = layout(place, layers, config=config)
    target = ["--dest-tls-verify=false", *([f"--dest-creds={user}"] if user else []), f"docker://{address}/{name}"]
    subprocess.run(["skopeo", "copy", "--quiet", f"oci:{made}:app", *target], check=True, capture_output=True)
    return f"{address}/{name}"


def _layout(folder: Path, name: str) -> Path:
    return folder / f"layout-{name.replace('/', '-').replace(':', '-')}"

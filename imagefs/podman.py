"""Images for podman and buildah: a directory that they are given as an additional image store.

An image there has the config that it was built with and one layer, whose directory is a link to the mounted tree, which
a lease holds. So `podman run NAME`, `podman build` and `buildah from NAME` find it as one that was pulled, and a
container's own overlay stands on the tree.

podman itself writes the directory, because layout and locks of containers-storage are its own. It is handed an archive
whose one layer is a small file; then the link takes the place of what it unpacked. That file is not in the tree, so a
`podman push` or `save` of the layer fails, rather than sending an image without files.

    ROOT/overlay/LAYER/diff    links to RUNTIME/imagefs/pool/DIGEST, so it leads nowhere after a restart of the machine
    /run/bootseer/podman/…     what podman keeps until then while it works here; it takes no path of over 50 characters
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Lease
from imagefs.errors import NoSuchImage, RunError
from imagefs.reference import Platform
from stripefs.errors import ConfigError, MountError, StripefsError
from stripefs.settings import StoreSettings

__all__ = ["Archive", "ImageStore", "archive", "full_name"]

_CLIENT = "podman"
_NAME = re.compile(r"[a-z0-9][a-zA-Z0-9._:/-]*")


class Archive(NamedTuple):
    """`content`: what podman reads from a file (docker-archive). image, layer: the ids that it gives to both."""

    content: bytes
    image: str
    layer: str


def archive(config: Mapping[str, Any], digest: str) -> Archive:
    """An archive of an image with this OCI config whose one layer holds nothing but `digest`, the image's own."""
    layer = _tar({".imagefs": f"{digest}\n".encode()})
    name = hashlib.sha256(layer).hexdigest()
    document = {
        "architecture": Platform.current().architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        **config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{name}"]},
        "history": [{"created": config.get("created") or "1970-01-01T00:00:00Z", "created_by": f"imagefs {digest}"}],
    }
    text = json.dumps(document, sort_keys=True).encode()
    image = hashlib.sha256(text).hexdigest()
    manifest = json.dumps([{"Config": f"{image}.json", "RepoTags": None, "Layers": [f"{name}.tar"]}]).encode()
    return Archive(_tar({f"{image}.json": text, f"{name}.tar": layer, "manifest.json": manifest}), image, name)


def _tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def full_name(name: str) -> str:
    """The name as podman completes it: `localhost/` before one without a registry, `:latest` after one without a tag.

    Raises ConfigError.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of an image", hint="write NAME:TAG or REGISTRY/NAME:TAG")
    first, slash, _ = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        name = f"localhost/{name}"
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


class ImageStore:
    """The directory `root`, made when an image is added. client: of the daemon that mounts the trees. For root.

    run: the folder of what podman keeps while it works there.
    """

    def __init__(self, client: Client, root: str) -> None:
        self._client = client
        self._root = Path(os.path.abspath(root))
        self.run = Path("/run/bootseer/podman", hashlib.sha256(os.fsencode(self._root)).hexdigest()[:12])

    def add(self, store: StoreSettings, image: str, name: str, *, workload: str = "default") -> str:
        """Show the image of this tag or digest as `name`; the id that podman has for it. Done again it repairs.

        Raises MountError where the name is that of another image by now, and RunError with podman's words.
        """
        name = full_name(name)
        lease = self._lease(name)
        try:
            held = self._client.hold(store, image, lease, workload=workload)
        except MountError as error:
            if any(lease.is_of(one.lease._asdict()) for one in self._client.leases(_CLIENT)):
                raise MountError(
                    error.message, hint=f"imagefs podman rm {name} first, or choose another name"
                ) from error
            raise
        try:
            made = archive(held.config, held.image)
            with tempfile.NamedTemporaryFile(prefix="imagefs-podman-") as file:
                file.write(made.content)
                file.flush()
                self._podman("pull", "--quiet", f"docker-archive:{file.name}")
            self._link(made.layer, held.lowerdir)
            self._podman("tag", made.image, name)
        except BaseException:
            with contextlib.suppress(StripefsError):  # that error is the one to tell
                self._client.release(lease)
            raise
        return made.image

    def remove(self, name: str) -> None:
        """Take the name away, and the image with its last name. Raises NoSuchImage."""
        name = full_name(name)
        if not self._podman("images", "--quiet", "--no-trunc", "--filter", f"reference={name}").strip():
            raise NoSuchImage(f"{self._root} has no image {name}", hint="podman images lists them")
        self._podman("rmi", "--force", name)
        self._client.release(self._lease(name))

    def _link(self, layer: str, tree: str) -> None:
        """Let the directory of a layer be the tree. Raises RunError where podman has put it elsewhere."""
        place = self._root / "overlay" / layer / "diff"
        draft = place.with_name("imagefs.new")
        try:
            draft.unlink(missing_ok=True)
            draft.symlink_to(tree)
            if not place.is_symlink():
                shutil.rmtree(place)
            draft.rename(place)
        except OSError as error:
            raise RunError(f"podman has no layer at {place}: {error.strerror}") from error

    def _lease(self, name: str) -> Lease:
        return Lease(f"{self._root} {name}", _CLIENT, name)

    def _podman(self, *arguments: str) -> str:
        """Runs podman on this directory and no other; its standard output. Raises RunError."""
        program = shutil.which("podman")
        if program is None:
            raise RunError("podman is missing", hint="apt install podman")
        self.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [program, "--root", str(self._root), "--runroot", str(self.run), "--tmpdir", str(self.run / "tmp")]
        # podman mounts the directory over itself otherwise, for good.
        command += ["--storage-driver", "overlay", "--storage-opt", "overlay.skip_mount_home=true", *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        if done.returncode:
            words = done.stderr.strip().splitlines() or ["it said nothing"]
            raise RunError(f"podman {arguments[0]} failed: {words[-1]}")
        return done.stdout

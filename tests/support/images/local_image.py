"""Images that lie on this machine as a whole, mounted by the kernel with no daemon in between."""

from __future__ import annotations

import subprocess
from pathlib import Path

from imagefs.build.image import build
from imagefs.build.pipeline import BuildOptions, open_source
from imagefs.format.codec import decode
from imagefs.format.index import BLOCK, NOWHERE, Index
from imagefs.plane import erofs
from imagefs.progress import Progress
from imagefs.repository.images import Images
from stripefs.fuse import kernel

__all__ = ["LocalImage", "build_layout", "device_bytes"]


def build_layout(path: Path, images: Images, temporary: Path, tag: str = "app") -> str:
    """Build the only image of the layout at `path`; the digest of its manifest. Layers are unpacked to `temporary`."""
    with open_source(f"oci:{path}", BuildOptions(temporary), Progress()) as tree:
        return build(tree.root, tree.contents, images, tag=tag, source=tree.digest, config=tree.config).digest


class LocalImage:
    """An image of a store, brought to `folder`, which is made. Its tree is at `mountpoint` once it is mounted."""

    def __init__(self, images: Images, digest: str, folder: Path) -> None:
        folder.mkdir()
        manifest = images.manifest(digest)
        self.metadata, self.mountpoint = folder / "meta.erofs", folder / "mnt"
        self.mountpoint.mkdir()
        self.metadata.write_bytes(images.metadata(manifest.metadata))
        self.devices = [folder / one.tag for one in manifest.devices]
        for path, device in zip(self.devices, manifest.devices, strict=True):
            path.write_bytes(device_bytes(images, images.index(device.index)))

    def fsck(self) -> str:
        """Errors that fsck.erofs finds, "" for none."""
        devices = [f"--device={path}" for path in self.devices]
        done = subprocess.run(["fsck.erofs", *devices, str(self.metadata)], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr if done.returncode else ""

    def mount(self) -> None:
        erofs.mount(str(self.metadata), [str(path) for path in self.devices], str(self.mountpoint))

    def close(self) -> None:
        while kernel.find_mount(str(self.mountpoint)) is not None:
            kernel.unmount(str(self.mountpoint), kernel.MNT_DETACH)


def device_bytes(images: Images, index: Index) -> bytes:
    """The whole content of a device of a store's image."""
    packs = []
    for pack in index.packs:
        name = pack.digest.hex()
        packs.append(images.read(f"/packs/{name[:2]}/{name}".encode()))
    data = bytearray()
    for number in range(index.blocks):
        place = index.place(number)
        if place.pack != NOWHERE:
            stored = packs[place.pack][place.offset : place.offset + place.stored]
            data += decode(index.packs[place.pack].codec, stored, place) or b""
        data += bytes((number + 1) * BLOCK - len(data))
    return bytes(data[: index.device_bytes])

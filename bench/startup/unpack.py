"""An image fetched and unpacked as fast as common programs do it by hand, and a container of that by runc.

skopeo fetches all layers at once; then each is unpacked into a directory of its own, all at once, as SOCI's parallel
mode does it, and an overlay makes one tree of them. umoci writes the configuration for runc.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bench.harness import BenchError
from bench.harness.environment import remove_tree
from bench.harness.programs import output, run
from bench.startup.accelerator import rules

__all__ = ["bundle", "container"]

# umoci leaves the last member of layers that it inserts without padding, and tar wants that.
_UNPACK = '{ gzip -dc "$1" && head -c 10240 /dev/zero; } | tar -x --numeric-owner -C "$2"'


def bundle(reference: str, folder: Path) -> Path:
    """The image of a registry without TLS as a bundle in `folder`, anew. Raises BenchError."""
    remove_tree(folder)
    layout = folder / "layout"
    for name in ("rootfs", "upper", "work", "layers"):
        (folder / name).mkdir(parents=True)
    run("skopeo", "copy", "--quiet", "--src-tls-verify=false", f"docker://{reference}", f"oci:{layout}:job")
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    layers = [layer["digest"] for layer in json.loads(_blob(layout, entry["digest"]).read_text())["layers"]]
    with ThreadPoolExecutor(len(layers)) as pool:
        places = list(pool.map(lambda one: _unpack(layout, folder / "layers", *one), enumerate(layers)))
    lower = ":".join(str(place) for place in reversed(places))
    options = f"lowerdir={lower},upperdir={folder / 'upper'},workdir={folder / 'work'}"
    run("mount", "-t", "overlay", "overlay", "-o", options, folder / "rootfs")
    image = f"{layout}:job"
    run("umoci", "raw", "runtime-config", "--image", image, "--rootfs", folder / "rootfs", folder / "config.json")
    return folder


def _unpack(layout: Path, folder: Path, number: int, digest: str) -> Path:
    place = folder / str(number)
    place.mkdir()
    run("sh", "-c", _UNPACK, "sh", _blob(layout, digest), place)
    if any(place.rglob(".wh.*")):
        raise BenchError(f"a layer of the image removes files, which takes more than tar: {digest}")
    return place


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


@contextmanager
def container(
    folder: Path,
    name: str,
    words: list[str],
    binds: Mapping[str, str],
    devices: tuple[str, ...],
    environment: Mapping[str, str],
) -> Iterator[list[str]]:
    """The command that runs a container of a bundle, in this process's network; it is gone when the block ends."""
    config = json.loads((folder / "config.json").read_text())
    process = config["process"]
    process["terminal"] = False
    process["args"] = words
    process["env"] += [f"{key}={value}" for key, value in environment.items()]
    config["root"] = {"path": "rootfs", "readonly": False}
    config["linux"]["namespaces"] = [one for one in config["linux"]["namespaces"] if one["type"] != "network"]
    for source, target in binds.items():
        config["mounts"].append({"type": "bind", "source": source, "destination": target, "options": ["rbind", "rw"]})
    linux, wanted = config["linux"], rules(devices)
    linux["devices"] = [*linux.get("devices", []), *wanted]
    limits = linux.setdefault("resources", {})
    allowed = [
        {"allow": True, "access": "rwm", **{key: one[key] for key in ("type", "major", "minor")}} for one in wanted
    ]
    limits["devices"] = [*limits.get("devices", []), *allowed]
    (folder / "config.json").write_text(json.dumps(config))
    try:
        yield ["runc", "run", "--bundle", str(folder), name]
    finally:
        if name in output("runc", "list", "--quiet").split():
            run("runc", "delete", "--force", name)
        if os.path.ismount(folder / "rootfs"):
            run("umount", folder / "rootfs")

"""The images that are measured: made once, kept as an OCI layout in the work folder.

The first two layers (Debian's base system by debootstrap, then Python by apt inside it) are common to all. Wheels come
from pip over them, one layer of each group, with fixed times of installation and the byte code that belongs to these.
Only the versions of Debian's packages depend on the day. umoci writes layers as registries have them: tar, gzip.

A tag carries a digest of what the image is made from, and appears when the image is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import ROOT, BenchError, Say
from bench.harness.environment import remove_tree
from bench.harness.programs import output, run
from bench.image import stubs
from bench.image.recipe import BASE, SUITE, Recipe, base_reference, pins, reference

__all__ = ["Image", "Source"]

_HERE = Path(__file__).parent
_START = ROOT / "bench/harness/start.py"
_SITE = "usr/local/lib/python3.11/dist-packages"
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
_INSTALLED_AT = {1: 1_735_689_600, 2: 1_738_368_000}  # New Year of 2025 and a month later, UTC
_LEFTOVERS = (
    "var/cache/apt/*.bin",
    "var/cache/apt/archives/*.deb",
    "var/cache/debconf/*-old",
    "var/lib/apt/lists/*_*",
    "var/lib/dpkg/*-old",
    "var/log/*.log",
    "var/log/apt/*",
)


@dataclass(frozen=True, slots=True)
class Image:
    """One tag of the layout. `compressed`: bytes that a client has to fetch; `seconds`: to make it now, 0 if kept."""

    layout: Path
    reference: str
    compressed: int
    layers: int
    seconds: float

    @property
    def name(self) -> str:
        """As skopeo and imagefs take it."""
        return f"oci:{self.layout}:{self.reference}"


class Source:
    """The layout in `work`. `mirror` is a Debian archive, found in apt's configuration unless given."""

    def __init__(self, work: Path, say: Say, mirror: str = "") -> None:
        self.layout = work / "layout"
        self._work = work
        self._say = say
        self._mirror = mirror

    def image(self, recipe: Recipe, build: int) -> Image:
        """Build 1 or 2 of `recipe`, made unless it is there. Raises BenchError."""
        files = [_HERE / "wheels.txt", _START, *([Path(stubs.__file__)] if recipe.stubs else [])]
        tag = reference(recipe, build, {file.name: file.read_text() for file in files})
        if not (self.layout / "index.json").exists():
            self._work.mkdir(parents=True, exist_ok=True)
            run("umoci", "init", "--layout", self.layout)
        seconds = 0.0
        if tag not in self._tags():
            base = self._base()
            begin = time.monotonic()
            self._make(recipe, build, base, tag)
            self._drop_replaced(tag)
            seconds = time.monotonic() - begin
            self._say(f"made {tag}: {seconds:.0f} s")
        manifest, size = self._manifest(tag)
        layers = manifest["layers"]
        compressed = size + manifest["config"]["size"] + sum(layer["size"] for layer in layers)
        return Image(self.layout, tag, compressed, len(layers), seconds)

    def _base(self) -> str:
        """The tag of base system and Python, whose unpacked tree is beside the layout under the same name."""
        tag = base_reference()
        bundle = self._work / tag
        if tag in self._tags() and bundle.exists():
            return tag
        begin = time.monotonic()
        draft, image = self._work / "base.new", self._draft()
        remove_tree(draft)
        run("umoci", "new", "--image", image)
        run("umoci", "unpack", "--image", image, draft)
        mirror = self._mirror or _mirror()
        self._say(f"installing Debian {SUITE} from {mirror} (once)")
        debs = self._work / "debs"
        debs.mkdir(exist_ok=True)
        run("debootstrap", "--variant=minbase", f"--cache-dir={debs}", SUITE, draft / "rootfs", mirror)
        self._repack(image, draft)
        debian = time.monotonic() - begin
        _chroot(draft / "rootfs", "apt-get", "update")
        _chroot(draft / "rootfs", "apt-get", "install", "-y", "--no-install-recommends", BASE)
        self._repack(image, draft)
        self._publish(image, tag)
        remove_tree(bundle)
        draft.rename(bundle)
        self._say(f"made {tag}: {time.monotonic() - begin:.0f} s, of which debootstrap and its layer {debian:.0f} s")
        return tag

    def _make(self, recipe: Recipe, build: int, base: str, tag: str) -> None:
        image, staging = self._draft(), self._work / "layer.new"
        run("umoci", "tag", "--image", f"{self.layout}:{base}", image.rpartition(":")[2])
        known = pins((_HERE / "wheels.txt").read_text())
        for number, layer in enumerate(recipe.layers(build)):
            remove_tree(staging)
            site = staging / _SITE
            site.mkdir(parents=True)
            self._say(f"installing {' '.join(layer)}")
            self._install(site, [known[pin] for pin in layer])
            if recipe.stubs and (site / "torch").exists():
                stubs.make(site)
            if number == 0:
                (staging / "opt/bench").mkdir(parents=True)
                (staging / "opt/bench/start.py").write_bytes(_START.read_bytes())
            _set_times(staging, _INSTALLED_AT[build])  # byte code names the time of its source
            self._compile(self._work / base / "rootfs", site)
            _set_times(staging, _INSTALLED_AT[build])
            run("umoci", "insert", "--image", image, staging, "/")
        remove_tree(staging)
        entry = [f"--config.entrypoint={word}" for word in ("/usr/bin/python3", "/opt/bench/start.py")]
        entry += [f"--config.cmd={module}" for module in recipe.modules]
        path = "--config.env=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        run("umoci", "config", "--image", image, *entry, path)
        self._publish(image, tag)

    def _install(self, site: Path, requirements: list[str]) -> None:
        """pip's work, for the image's Python whatever runs here."""
        wanted = self._work / "requirements.txt"
        wanted.write_text("\n".join(requirements) + "\n")
        python = ["--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none"]
        python += [f"--platform={name}" for name in _PLATFORMS]
        how = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--only-binary=:all:"]
        pip = [sys.executable, "-m", "pip", "install", "--require-hashes", *how, *python]
        run(*pip, "--target", site, "-r", wanted)

    def _compile(self, root: Path, site: Path) -> None:
        """Byte code by the image's own Python, which sees `site` in its place, in a mount namespace of its own."""
        place = root / _SITE
        place.mkdir(parents=True, exist_ok=True)
        # A file for a later Python does not compile, and is left at that, as pip does.
        python = f"import compileall; compileall.compile_dir('/{_SITE}', quiet=2)"
        script = 'mount --bind "$1" "$2" && exec chroot "$3" /usr/bin/python3 -B -c "$4"'
        unshare = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh")
        run(*unshare, site, place, root, python, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"})

    def _repack(self, image: str, bundle: Path) -> None:
        for pattern in _LEFTOVERS:
            for file in (bundle / "rootfs").glob(pattern):
                file.unlink()
        run("umoci", "repack", "--refresh-bundle", "--image", image, bundle)

    def _draft(self) -> str:
        """The name of an image under way, which is not there."""
        if "draft" in self._tags():
            run("umoci", "rm", "--image", f"{self.layout}:draft")
        return f"{self.layout}:draft"

    def _drop_replaced(self, tag: str) -> None:
        """Older images of this recipe and build, and what was unpacked from them."""
        for old in self._tags():
            if old != tag and old.rpartition("-")[0] == tag.rpartition("-")[0]:
                run("umoci", "rm", "--image", f"{self.layout}:{old}")
                remove_tree(self._work / f"tree-{old}")
                for file in self._work.glob(f"*-{old}.ext4"):
                    file.unlink()
        run("umoci", "gc", "--layout", self.layout)

    def _publish(self, draft: str, tag: str) -> None:
        run("umoci", "tag", "--image", draft, tag)
        run("umoci", "rm", "--image", draft)

    def _tags(self) -> dict[str, str]:
        """Digests of manifests by tag."""
        index = json.loads((self.layout / "index.json").read_text())
        named = {
            entry.get("annotations", {}).get("org.opencontainers.image.ref.name"): entry
            for entry in index["manifests"] or []
        }
        return {name: entry["digest"] for name, entry in named.items() if name}

    def _manifest(self, tag: str) -> tuple[dict[str, Any], int]:
        digest = self._tags()[tag]
        content = (self.layout / "blobs" / digest.replace(":", "/")).read_bytes()
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            raise BenchError(f"{self.layout} is damaged: remove it")
        return json.loads(content), len(content)


def _chroot(root: Path, *command: str) -> None:
    """Run `command` in the tree below `root`, with a bare environment."""
    bare = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    bare |= {name: os.environ[name] for name in _PROXIES if name in os.environ}
    run("chroot", root, *command, env=bare)


def _mirror() -> str:
    """The archive that apt takes `SUITE` from on this machine. Raises BenchError where there is none."""
    fields = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    for line in output("apt-get", "indextargets", "--format", fields, "Created-By: Packages").splitlines():
        where, release, component = line.split()
        if (release, component) == (SUITE, "main"):
            return where
    raise BenchError(f"apt knows no archive of Debian {SUITE} here: name one with --mirror URL")


def _set_times(root: Path, seconds: int) -> None:
    for folder, _, files in os.walk(root):
        for name in (*files, "."):
            os.utime(os.path.join(folder, name), (seconds, seconds), follow_symlinks=False)

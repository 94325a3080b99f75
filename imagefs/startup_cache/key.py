"""The caches that are known, and the key of a job's: the facts that decide what its start compiles. Pure, but for
`node_facts`.

Most of these caches look an entry up by a hash of what it was compiled from, so an entry that does not fit is not found
and costs nothing but its bytes. Facts that such a hash leaves out have to be in the key: `needs` of a cache names it.

The key's canonical JSON names the snapshot (`imagefs.format.documents`). docs/startup-caches.md tells what each
component holds, and what is left out on purpose.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from imagefs.deps.lock import without_secrets
from imagefs.errors import RunError

__all__ = [
    "CACHES",
    "FOLDER",
    "Cache",
    "CacheJob",
    "NodeFacts",
    "deciding_variables",
    "deciding_words",
    "document",
    "environment",
    "node_facts",
    "parse",
    "world_size",
]  # fmt: skip

FOLDER = "/run/imagefs-caches"
"""The folder in which containers have all of them. Some caches hold absolute paths, so it is always the same."""


class Cache(NamedTuple):
    """One kind of cache. variable: names its folder. settings: other variables that it needs to be of use elsewhere.
    needs: facts that its own look-up does not compare, or that decide what is compiled at all: `cpu` (the processor's
    model and instructions), `accelerator` (models and driver), `world` (how many ranks the job has). always: it is part
    of `auto`, since its variable changes nothing but where it lies."""

    name: str
    variable: str
    needs: frozenset[str] = frozenset()
    settings: Mapping[str, str] = {}
    always: bool = True


_DEVICE = frozenset({"accelerator", "world"})
_ALL = _DEVICE | {"cpu"}

CACHES = {
    cache.name: cache
    for cache in (
        # Code is compiled with -march=native; the graph's hash knows the GPU, Triton and torch, but no processor. The
        # precompiled header of 160 MB lies in the temporary folder, whatever the variable says, and a start that finds
        # every graph would compile it anew.
        Cache("inductor", "TORCHINDUCTOR_CACHE_DIR", _ALL, {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}),
        # Triton hashes source, compiler and target; its launchers are compiled on the host by cc.
        Cache("triton", "TRITON_CACHE_DIR", _ALL),
        # The driver compares its own version and the device.
        Cache("cuda", "CUDA_CACHE_PATH", _DEVICE),
        # jax hashes the program, the options of XLA and the device; of the host's processor it only warns.
        Cache("jax", "JAX_COMPILATION_CACHE_DIR", _ALL),
        # ninja compares times and command lines, in which absolute paths stand.
        Cache("extensions", "TORCH_EXTENSIONS_DIR", frozenset({"cpu", "accelerator"})),
        # The index compares the source's time and size, and the processor's name and instructions.
        Cache("numba", "NUMBA_CACHE_DIR", frozenset({"cpu", "accelerator"})),
        # The list of fonts compares its version alone; fonts are of the image or of the packages.
        Cache("matplotlib", "MPLCONFIGDIR"),
        # With this variable Python reads no bytecode beside sources any more, so a first start makes all of it.
        Cache("pycache", "PYTHONPYCACHEPREFIX", always=False),
    )
}

_RANKED = re.compile(
    r"--(node[-_]rank|machine[-_]rank|process[-_]id|rank|local[-_]rank|master[-_]addr|master[-_]port"
    r"|main[-_]process[-_]ip|main[-_]process[-_]port|rdzv[-_]endpoint|rdzv[-_]id|coordinator[-_]address)"
)
"""Options of launchers that differ between the nodes, or the starts, of one job."""

_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JAX_NUM_PROCESSES")

_DECIDING = re.compile(
    r"(TORCHINDUCTOR|TORCHDYNAMO|TORCH_COMPILE|TORCH_CUDA|TRITON|XLA|JAX|LIBTPU|CUDA|NVCC|HIP|ROCM|NUMBA)_\w+"
    r"|CC|CXX|(C|CXX|CPP|LD)FLAGS|OMP_NUM_THREADS|PYTHONOPTIMIZE"
)
_NOT_DECIDING = re.compile(r"\w+_VISIBLE_DEVICES|(JAX|CUDA)_\w*(PROCESS_ID|COORDINATOR\w*|DEVICE_ORDER|CACHE_MAXSIZE)")

_MODEL = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU architecture", "CPU variant", "CPU part")
_INSTRUCTIONS = ("flags", "Features", "isa")

_NVIDIA_DRIVER = re.compile(r"^NVRM version:.*?\s(\d+\.\d[\d.]*)", re.MULTILINE)
_NVIDIA_MODEL = re.compile(r"^Model:\s*(.*\S)", re.MULTILINE)
_AMD_TARGET = re.compile(r"^gfx_target_version\s+([1-9]\d*)", re.MULTILINE)


class NodeFacts(NamedTuple):
    """The facts of a node. cpu: of its processor, by name. accelerators: their models. driver: its version."""

    cpu: Mapping[str, str]
    accelerators: Sequence[str]
    driver: str


class CacheJob(NamedTuple):
    """A start. image: digest of the image, of an optimised one that of its base. packages: the key of the
    dependency snapshot above it, "" for none. words: the command line. user: as options and image name it. environ: all
    variables of the container. world: how many ranks there are, "" where nobody says."""

    image: str
    packages: str
    words: Sequence[str]
    user: str
    environ: Mapping[str, str]
    world: str
    salt: str = ""


def parse(text: str) -> tuple[Cache, ...]:
    """The caches of `auto`, or those of these names with commas between them, in the order of the table.

    Raises RunError.
    """
    names = {name.strip() for name in text.split(",")}
    if unknown := sorted(names - {"auto", *CACHES}):
        raise RunError(
            f"--startup-cache {text}: {unknown[0]!r} is no cache that is known",
            hint=f"auto, or some of {', '.join(CACHES)}",
        )
    return tuple(one for one in CACHES.values() if one.name in names or ("auto" in names and one.always))


def environment(caches: Sequence[Cache], environ: Mapping[str, str]) -> list[str]:
    """NAME=VALUE for a container with these caches, whose variables are `environ` otherwise."""
    found = []
    for cache in caches:
        found += [f"{name}={value}" for name, value in cache.settings.items() if name not in environ]
        found.append(f"{cache.variable}={FOLDER}/{cache.name}")
    return found


def document(caches: Sequence[Cache], job: CacheJob, node: NodeFacts) -> dict[str, Any]:
    """The key of these caches; facts that none of them needs are null in it."""
    needs = {need for cache in caches for need in cache.needs}
    return {
        "bootseer": "startup-cache-key",
        "version": 1,
        "components": {
            "caches": sorted(cache.name for cache in caches),
            "image": job.image,
            "packages": job.packages,
            "command": deciding_words(job.words),
            "user": job.user,
            "environment": deciding_variables(job.environ),
            "cpu": dict(node.cpu) if "cpu" in needs else None,
            "accelerators": sorted(node.accelerators) if "accelerator" in needs else None,
            "driver": node.driver if "accelerator" in needs else None,
            "world": job.world if "world" in needs else None,
            "salt": job.salt,
        },
    }


def deciding_words(words: Sequence[str]) -> list[str]:
    """A command line without the options of launchers that tell nodes and starts of one job apart."""
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if _RANKED.fullmatch(name):
            if not equals:
                next(rest, "")
        else:
            found.append(without_secrets(word))
    return found


def deciding_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that compilers and their caches read."""
    return {
        name: without_secrets(value)
        for name, value in sorted(environ.items())
        if _DECIDING.fullmatch(name) and not _NOT_DECIDING.fullmatch(name)
    }


def world_size(*environs: Mapping[str, str]) -> str:
    """The number of ranks of the job, by the first of these environments that says so; "" where none does."""
    return next((environ[name] for environ in environs for name in _WORLD if environ.get(name)), "")


def node_facts(root: Path = Path("/")) -> NodeFacts:
    """The facts that /proc and /sys below `root` tell. Without an accelerator there are no models and no driver."""
    nvidia = [_NVIDIA_MODEL.search(_text(one)) for one in root.glob("proc/driver/nvidia/gpus/*/information")]
    amd = [_AMD_TARGET.search(_text(one)) for one in root.glob("sys/class/kfd/kfd/topology/nodes/*/properties")]
    models = [*(found[1] for found in nvidia if found), *(f"gfx {found[1]}" for found in amd if found)]
    drivers = _NVIDIA_DRIVER.findall(_text(root / "proc/driver/nvidia/version"))
    drivers += [f"amdgpu {one}" for one in _text(root / "sys/module/amdgpu/version").split()]
    return NodeFacts(_processor(_text(root / "proc/cpuinfo")), sorted(set(models)), " ".join(drivers))


def _processor(cpuinfo: str) -> Mapping[str, str]:
    """Model and instructions of the first processor, which all of a machine share."""
    found = {}
    for line in cpuinfo.partition("\n\n")[0].splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in _MODEL:
            found[name] = value
        elif name in _INSTRUCTIONS:  # a few kilobytes, of which nobody reads more than that they differ
            found["instructions"] = hashlib.sha256(" ".join(sorted(value.split())).encode()).hexdigest()[:16]
    return found


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):  # no such device, or no such driver
        return path.read_text(encoding="utf-8", errors="replace")
    return ""

"""The key of a job's start-up caches: the facts that decide what its start compiles. Pure.

Its canonical JSON names the snapshot (`imagefs.format.snapshot`). docs/startup-caches.md tells what each component
holds, and what is left out on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from imagefs.startup_cache.table import Cache, Need

__all__ = ["Facts", "Job", "deciding_variables", "deciding_words", "document", "world_size"]

VERSION = 1

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


class Facts(NamedTuple):
    """The facts of a node. cpu: of its processor, by name. accelerators: their models. driver: its version."""

    cpu: Mapping[str, str]
    accelerators: Sequence[str]
    driver: str


class Job(NamedTuple):
    """What is started. image: digest of the image, of an optimised one that of its base. packages: the key of the
    dependency snapshot above it, "" for none. words: the command line. user: as options and image name it. environ: all
    variables of the container. world: how many ranks there are, "" where nobody says."""

    image: str
    packages: str
    words: Sequence[str]
    user: str
    environ: Mapping[str, str]
    world: str
    salt: str = ""


def document(caches: Sequence[Cache], job: Job, node: Facts) -> dict[str, Any]:
    """The key of these caches; facts that none of them needs are null in it."""
    needs: set[Need] = {need for cache in caches for need in cache.needs}
    return {
        "bootseer": "startup-cache-key",
        "version": VERSION,
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
            found.append(word)
    return found


def deciding_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that compilers and their caches read."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if _DECIDING.fullmatch(name) and not _NOT_DECIDING.fullmatch(name)
    }


def world_size(*environs: Mapping[str, str]) -> str:
    """How many ranks the job has, by the first of these environments that says so; "" where none does."""
    return next((environ[name] for environ in environs for name in _WORLD if environ.get(name)), "")

"""The caches that are known: which variable places each, and what decides that its contents are of use. Pure.

Most of these caches look an entry up by a hash of what it was compiled from, so an entry that does not fit is not found
and costs nothing but its bytes. What such a hash leaves out has to be in the key of the snapshot: `needs` names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from imagefs.errors import RunError

__all__ = ["CACHES", "FOLDER", "Cache", "environment", "parse"]

FOLDER = "/run/imagefs-caches"
"""Where containers have all of them. Some caches hold absolute paths, so it is always the same."""


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

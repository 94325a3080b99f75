"""Which figures `bench deps` has, as tables: systems and cases, ratios with their targets. Pure.

`fresh` is a host that has nothing of the installation, nor of any before it; `again` the same host when what was there
is gone from the target, and caches are not. Times of these cases last until the modules are imported; what is called
net is that without the import alone, from memory, which no installer can take away.
"""

from __future__ import annotations

from bench.ratios import RatioPlan
from bench.results import Key, Samples

__all__ = ["CASES", "SYSTEMS", "derive", "name_fastest", "ratios"]

CASES = ("fresh", "again", "warm", "disk")

SYSTEMS = {
    "imagefs": "imagefs, mounted, with record",
    "imagefs:lazy": "imagefs, mounted, no record",
    "uv": "uv, no bytecode",
    "uv:bytecode": "uv, bytecode",
    "pip:no_bytecode": "pip, no bytecode",
    "pip": "pip, bytecode",
    "imagefs:miss": "imagefs, installed by pip and published",
}
"""Those of the first two cases, with words for people, fastest expected first."""

_UV = "uv:fastest"


def ratios() -> list[RatioPlan]:
    """Every ratio, targets first."""
    made = [
        _fresh("hit_fresh_node_vs_pip_net", "imagefs", "pip", "net", 0.1),
        _fresh("hit_fresh_node_vs_uv_net", "imagefs", _UV, "net", 0.4),
        RatioPlan("hit_same_node_vs_installed", Key("warm", "imagefs", "time"), Key("warm", "installed", "time"), 1.1),
        _fresh("miss_vs_plain_install", "imagefs:miss", "pip", "install", 1.05),
        RatioPlan(
            "five_variants_stored_vs_unique",
            Key("disk", "imagefs:all", "stored"),
            Key("disk", "unique:all", "stored"),
            1.15,
        ),
        RatioPlan("mount_hit_ms", Key("again", "imagefs", "answered"), None, 100.0),
        _fresh("hit_fresh_node_vs_pip", "imagefs", "pip", "time"),
        _fresh("hit_fresh_node_vs_uv", "imagefs", _UV, "time"),
        _fresh("hit_without_record_vs_pip_net", "imagefs:lazy", "pip", "net"),
        _fresh("hit_without_record_vs_uv_net", "imagefs:lazy", _UV, "net"),
        _fresh("hit_moved_vs_pip", "imagefs", "pip", "moved"),
    ]
    made += [
        RatioPlan(f"hit_same_node_vs_cached_{_plain(system)}", _time("again", "imagefs"), _time("again", system))
        for system in ("pip", "pip:no_bytecode", "uv", "uv:bytecode")
    ]
    made += [
        RatioPlan(
            "one_variant_stored_vs_unique", Key("disk", "imagefs:one", "stored"), Key("disk", "unique:one", "stored")
        ),
        RatioPlan(
            "five_variants_stored_vs_installed",
            Key("disk", "imagefs:all", "stored"),
            Key("disk", "installed:all", "stored"),
        ),
    ]
    return made


def derive(samples: Samples, number: int) -> None:
    """Add what follows from this round's import from memory."""
    warm = samples.get(_time("warm", "installed")).get(number)
    for system in SYSTEMS:
        time = samples.get(_time("fresh", system)).get(number)
        if warm is not None and time is not None:
            samples.add("fresh", system, number, {"net": time - warm})


def name_fastest(samples: Samples) -> None:
    """Give the mode of uv that has a job ready first a name of its own."""
    samples.call("fresh", samples.best("fresh", ("uv", "uv:bytecode"), "time", least=True), _UV)


def _time(case: str, system: str) -> Key:
    return Key(case, system, "time")


def _plain(system: str) -> str:
    return system.replace(":", "_")


def _fresh(name: str, ours: str, against: str, metric: str, bound: float = 0.0) -> RatioPlan:
    return RatioPlan(name, Key("fresh", ours, metric), Key("fresh", against, metric), bound)

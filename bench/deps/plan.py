"""The plan of `bench deps`: packages and imports, systems and cases, ratios with their targets, the report. Pure.

The packages are pinned in requirements.txt: a training job of a language model installs these, without torch, which is
part of its image. So they are installed as they stand, without what they require besides.

`fresh` is a host that has nothing of the installation, nor of any before it; `again` the same host when what was there
is gone from the target, and caches are not. Times of these cases last until the modules are imported; what is called
net is that without the import alone, from memory, which no installer can take away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.harness.report import Bar, Bars, Facts, Report, machine, tools
from bench.harness.results import Document, Key, RatioPlan, Samples, sum_up, time_of

__all__ = ["CASES", "INSTALLER", "REPORT", "SYSTEMS", "Recipe", "derive", "ratios", "recipes", "summarize"]

# -- packages ----------------------------------------------------------------------------------------------------------

INSTALLER = "pip==26.3"
"""The pip that is measured; uv has the version of the checkout."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`pins` are installed; `modules` are imported. `older`: pins of the versions that some of them had before.

    hot: whether imports touch so many places of the snapshot that it gets a hot device.
    """

    name: str
    pins: tuple[str, ...]
    modules: tuple[str, ...]
    older: tuple[str, ...]
    hot: bool = True

    def variants(self) -> list[list[str]]:
        """The pins that a job installed over time, one upgrade after the other; the last ones are `pins`."""
        return [_with(self.pins, self.older[number:]) for number in range(len(self.older) + 1)]

    def everything(self) -> list[str]:
        """Each pin of any variant."""
        return sorted({*self.pins, *self.older})


_MODULES = (
    "numpy",
    "pandas",
    "pyarrow",
    "datasets",
    "transformers",
    "tokenizers",
    "wandb",
    "pydantic",
    "requests",
)
_OLDER = ("certifi==2026.7.22", "requests==2.34.1", "pandas==3.1.0", "transformers==5.22.2")

_FEW = (
    "certifi",
    "charset-normalizer",
    "click",
    "idna",
    "markdown-it-py",
    "mdurl",
    "pygments",
    "pyyaml",
    "requests",
    "rich",
    "urllib3",
)
_FEW_OLDER = ("certifi==2026.7.22", "click==8.5.0", "requests==2.34.1", "rich==14.3.4")
_FEW_MODULES = ("requests", "rich", "yaml", "click")


def recipes(text: str) -> dict[str, Recipe]:
    """By name, from the requirements file."""
    pins = tuple(line for line in text.splitlines() if line)
    few = tuple(pin for pin in pins if _name(pin) in _FEW)
    made = (
        Recipe("standard", pins, _MODULES, _OLDER),
        Recipe("quick", few, _FEW_MODULES, _FEW_OLDER, hot=False),
    )
    return {recipe.name: recipe for recipe in made}


def _with(pins: Iterable[str], others: Sequence[str]) -> list[str]:
    """`pins`, of which some have the versions of `others`."""
    known = {_name(pin): pin for pin in others}
    return [known.get(_name(pin), pin) for pin in pins]


def _name(pin: str) -> str:
    return pin.partition("==")[0]


# -- cases, systems, ratios --------------------------------------------------------------------------------------------

CASES = ("fresh", "again", "warm", "disk")

SYSTEMS = {
    "imagefs": "imagefs, mounted, with record",
    "imagefs:lazy": "imagefs, mounted, no record",
    "uv": "uv, no bytecode",
    "uv:bytecode": "uv, bytecode",
    "pip:no_bytecode": "pip, no bytecode",
    "pip": "pip, bytecode",
    "imagefs:miss": "imagefs, installed by pip and published",
    "imagefs:miss_uv": "imagefs, installed by uv and published",
}
"""Those of the first two cases, with words for people, fastest expected first."""

INSTALLERS = ("pip", "pip:no_bytecode", "uv", "uv:bytecode")
_UV, _PLAIN, _MISS = "uv:fastest", "plain:fastest", "imagefs:miss_fastest"


def ratios() -> list[RatioPlan]:
    """Every ratio, targets first."""
    made = [
        _fresh("hit_fresh_node_vs_pip_net", "imagefs", "pip", "net", 0.1),
        _fresh("hit_fresh_node_vs_uv_net", "imagefs", _UV, "net", 0.4),
        RatioPlan("hit_same_node_vs_installed", Key("warm", "imagefs", "time"), Key("warm", "installed", "time"), 1.1),
        _fresh("miss_vs_plain_install", "imagefs:miss", "pip", "install", 1.05),
        _fresh("miss_vs_plain_install_best", _MISS, _PLAIN, "install", 1.05),
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
        _fresh("miss_by_pip_vs_plain_install_best", "imagefs:miss", _PLAIN, "install"),
    ]
    made += [
        RatioPlan(f"hit_same_node_vs_cached_{_plain(system)}", time_of("again", "imagefs"), time_of("again", system))
        for system in INSTALLERS
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
    warm = samples.get(time_of("warm", "installed")).get(number)
    for system in SYSTEMS:
        time = samples.get(time_of("fresh", system)).get(number)
        if warm is not None and time is not None:
            samples.add("fresh", system, number, {"net": time - warm})


def summarize(samples: Samples, document: Document) -> None:
    """Set the document's rows and ratios anew.

    The mode of uv that has a job ready first has a name of its own, and so have the installer, and the miss of ours,
    that let the job go on first.
    """
    samples.call_best("fresh", ("uv", "uv:bytecode"), _UV, "time", least=True)
    samples.call_best("fresh", INSTALLERS, _PLAIN, "install", least=True)
    samples.call_best("fresh", ("imagefs:miss", "imagefs:miss_uv"), _MISS, "install", least=True)
    document.rows, document.ratios = samples.rows(), sum_up(samples, ratios())


def _plain(system: str) -> str:
    return system.replace(":", "_")


def _fresh(name: str, ours: str, against: str, metric: str, bound: float = 0.0) -> RatioPlan:
    return RatioPlan(name, Key("fresh", ours, metric), Key("fresh", against, metric), bound)


# -- report ------------------------------------------------------------------------------------------------------------


def _head(facts: Facts) -> str:
    what = facts["installation"]
    return (
        f"{what['packages']} packages, {what['wheels_mb']:g} MB of wheels, {what['size_mb']:g} MB in {what['files']} "
        f"files where pip installed them; imports: {', '.join(what['modules'])}; {facts['rounds']} rounds. "
        f"Link: {facts['link']}. Read-ahead of the local disk {facts['read_ahead_kib']} KiB. "
        f"{machine(facts, tools(facts))}"
    )


def _chart(document: Document) -> Bars:
    words = {"fresh": "a host that has nothing", "again": "the same host again"}
    found = [(case, name, document.row(case, name, "time")) for case in words for name in SYSTEMS]
    what = document.environment["installation"]
    return Bars(
        [
            Bar(f"{SYSTEMS[name]}: {words[case]}", row, ours=name.startswith("imagefs"))
            for case, name, row in found
            if row
        ],
        of="starts",
        title=f"Dependencies of a job: {what['packages']} packages, {what['wheels_mb']:g} MB of wheels over 50 MB/s, "
        f"{what['size_mb']:g} MB installed",
        scale="seconds until its modules are imported: median, lowest and highest round",
    )


REPORT = Report(
    ratios=ratios(),
    columns=("time", "install", "imports", "net", "published", "answered", "moved", "stored"),
    cases=CASES,
    systems=[*SYSTEMS, "installed"],
    head=_head,
    chart=_chart,
)

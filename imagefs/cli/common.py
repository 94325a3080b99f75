"""What the commands on stores share: flags, settings, and the store itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from imagefs.config import IMAGEFS, Settings, resolve
from imagefs.reference import Reference
from stripefs.cli.flags import given, settings_flags
from stripefs.cli.output import table
from stripefs.units import format_size

if TYPE_CHECKING:
    from imagefs.build.pipeline import Built
    from imagefs.repository.images import Images

__all__ = ["flags", "images_of", "json_flag", "opened", "print_json", "quiet_flag", "settings_for", "show_made"]

_F = TypeVar("_F", bound=Callable[..., Any])

_PATIENCE = 60.0  # seconds in which a store may come back

json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
quiet_flag = click.option("-q", "--quiet", is_flag=True, help="Show no progress, and of the result only what names it.")


def flags(*sections: str, also: Sequence[str] = ()) -> Callable[[_F], _F]:
    """--config, and the flags of these sections of the options and those in `also`; --log-level in any case."""

    def add(function: _F) -> _F:
        config = click.option(
            "--config", default="", metavar="FILE", help="Read this TOML file instead of the usual ones."
        )
        without = ["mirror"]  # what is asked here is the store itself
        return settings_flags(*sections, also=["log-level", *also], without=without, options=IMAGEFS)(config(function))

    return add


def settings_for(ctx: click.Context, config: str, store: str = "") -> Settings:
    """What this invocation, the environment and the files say. Raises ConfigError."""
    return resolve(given(ctx), url=store, config=config)


@contextmanager
def opened(settings: Settings, *, make: bool = False) -> Iterator[Images]:
    """The images in the store of `settings`, connected while this lasts; with `make` it may be new."""
    from imagefs.repository.images import Images  # which loads the codecs, that commands on events need not have
    from imagefs.repository.store import open_repository

    repository = open_repository(settings.store, make=make)
    try:
        yield Images(repository, _PATIENCE)
    finally:
        repository.close()


def images_of(ctx: click.Context, config: str, store: str) -> AbstractContextManager[Images]:
    """The images in a store that exists. Raises ConfigError and StoreErrors."""
    return opened(settings_for(ctx, config, store))


def print_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def show_made(place: Reference, made: Built, seconds: float, *, as_json: bool, quiet: bool) -> None:
    """Print what was built at `place`, which has the tag as its name."""
    if as_json:
        document = {"store": str(Reference(place.store)), "tag": place.name, **asdict(made)}
        print_json(document | {"seconds": round(seconds, 3)})
        return
    if quiet:
        sys.stdout.write(made.digest + "\n")
        return
    from imagefs.cli.traces import words

    built, hot = made.built, made.hot
    stored = f"{format_size(built.stored_bytes)} in {built.blocks} blocks, {format_size(built.new_bytes)} new"
    rows = [
        ("image", str(Reference(place.store, place.name or made.digest))),
        ("digest", made.digest),
        ("files", str(built.files)),
        ("stored", stored),
        ("metadata", format_size((hot or built).metadata_bytes)),
        ("hot device", words(hot) if hot else ""),
        ("time", f"{seconds:.1f} s"),
    ]
    sys.stdout.write(table(rows) + "\n")

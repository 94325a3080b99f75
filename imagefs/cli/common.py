"""Common parts of the commands: flags, settings, the image or store that is meant, and a progress bar for terminals."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from imagefs.config import IMAGEFS, Settings, resolve
from imagefs.progress import Progress
from imagefs.reference import parse_reference
from stripefs.cli import commands as cli_commands
from stripefs.cli.commands import config_flag, given, settings_flags
from stripefs.cli.fastpath import Flag
from stripefs.cli.output import rate
from stripefs.units import format_size

if TYPE_CHECKING:
    from imagefs.repository.images import Images

__all__ = [
    "Bar",
    "daemon_flags",
    "flags",
    "image_and_settings",
    "images_of",
    "json_flag",
    "opened",
    "plain_flags",
    "print_json",
    "progress_bar",
    "quiet_flag",
    "settings_for",
]

_F = TypeVar("_F", bound=Callable[..., Any])
daemon_flags = settings_flags(also=["runtime", "log-level"], options=IMAGEFS)
"""For commands that only talk to the daemon."""


def plain_flags(flags: Sequence[Flag]) -> Callable[[_F], _F]:
    """Flags of `imagefs.cli.flags` as flags of a click command, in this order."""

    def add_all(function: _F) -> _F:
        for flag in reversed(flags):
            function = _option(flag)(function)
        return function

    return add_all


def _option(flag: Flag) -> Callable[[_F], _F]:
    more: dict[str, Any] = {"default": flag.unset, "help": flag.help}
    name = f"--{flag.name}/--no-{flag.name}" if flag.kind == "either" else f"--{flag.name}"
    if flag.kind == "switch":
        more = {"is_flag": True, "help": flag.help}
    elif flag.kind == "texts":
        more = {"multiple": True, "help": flag.help}
    if flag.choices:
        more["type"] = click.Choice(flag.choices)
    if flag.metavar:
        more["metavar"] = flag.metavar
    return click.option(name, flag.field, **more)


def settings_for(ctx: click.Context, config: str = "", store: str = "") -> Settings:
    """Settings of this invocation, the environment and the files. Raises ConfigError."""
    return resolve(given(ctx), url=store, config=config)


def image_and_settings(ctx: click.Context, text: str, config: str) -> tuple[str, Settings]:
    """The image that `STORE#TAG` names, and the settings for its store."""
    reference = parse_reference(text)
    return reference.name, settings_for(ctx, config, reference.store)


_EVERY = 0.1  # seconds between two drawings
_WIDTH = 24


class Bar(Progress):
    """Draws the stage under way on one line of `out`; `clear` takes it away."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._name = ""
        self._total = self._done = 0
        self._began = self._drawn = time.monotonic()

    def stage(self, name: str, total: int = 0) -> None:
        with self._lock:
            self._name, self._total, self._done = name, total, 0
            self._began = time.monotonic()
            self._draw()

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            if time.monotonic() - self._drawn >= _EVERY:
                self._draw()

    def clear(self) -> None:
        with self._lock:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._out.write(f"\r{self.line()}\x1b[K")
        self._out.flush()

    def line(self) -> str:
        """The line as it is now: stage, share, bytes, speed."""
        parts = [f"{self._name:<10}"]
        if self._total:
            share = min(1.0, self._done / self._total)
            full = int(share * _WIDTH)
            parts.append(f"[{'=' * full}{' ' * (_WIDTH - full)}] {share:4.0%}")
        if self._done:
            parts.append(format_size(self._done) + (f" of {format_size(self._total)}" if self._total else ""))
            parts.append(rate(self._done / max(1e-9, self._drawn - self._began)))
        return "  ".join(parts)


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Progress]:
    """A bar while this lasts; nothing where standard error is no terminal, or where --quiet is given."""
    if quiet or not sys.stderr.isatty():
        yield Progress()
        return
    bar = Bar(sys.stderr)
    try:
        yield bar
    finally:
        bar.clear()


_PATIENCE = 60.0  # seconds in which a store may come back
json_flag = cli_commands.json_flag("Print JSON.")
quiet_flag = click.option("-q", "--quiet", is_flag=True, help="Show no progress, and of the result only its name.")


def flags(*sections: str, also: Sequence[str] = ()) -> Callable[[_F], _F]:
    """--config, and the flags of these sections of the options and those in `also`; --log-level in any case."""

    def add(function: _F) -> _F:
        without = ["mirror"]  # these commands ask the store itself
        return settings_flags(*sections, also=["log-level", *also], without=without, options=IMAGEFS)(
            config_flag(function)
        )

    return add


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

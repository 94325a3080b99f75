"""What commands that begin the use of an image have in common: where it is, and how its start is recorded."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from imagefs.config import IMAGEFS, Settings, resolve
from imagefs.daemon.client import Recording
from imagefs.reference import parse_reference
from stripefs.cli.flags import given, settings_flags
from stripefs.errors import ConfigError

__all__ = ["daemon_flags", "image_and_settings", "recording", "recording_flags", "settings_of", "use_flags"]

_F = TypeVar("_F", bound=Callable[..., Any])

daemon_flags = settings_flags(also=["runtime", "log-level"], options=IMAGEFS)
"""For commands that only talk to the daemon."""


def use_flags(*without: str) -> Callable[[_F], _F]:
    """How an image becomes a tree, and the settings of the daemon but those named, whose names mean another thing."""
    start_flags = settings_flags("store", "daemon", without=without, options=IMAGEFS)

    def add_all(function: _F) -> _F:
        for add in (
            click.option(
                "--erofs-backing",
                "backing",
                type=click.Choice(["auto", "file", "loop"]),
                default="auto",
                help="What the kernel's EROFS mounts: files, or loop devices over them (kernels before 6.12).",
            ),
            click.option(
                "--rw", is_flag=True, help="Put a place to write on top; what is written goes with the mount."
            ),
        ):
            function = add(function)
        return start_flags(function)

    return add_all


def recording_flags(function: _F) -> _F:
    for add in (
        click.option("--ready-file", default="", metavar="FILE", help="The start is over when this file appears."),
        click.option("--no-record", is_flag=True, help="Leave no trace of this start."),
        click.option(
            "--workload", default="default", metavar="NAME", help="Under which name the start is recorded and replayed."
        ),
    ):
        function = add(function)
    return function


def recording(workload: str, ready_file: str, no_record: bool) -> Recording:
    """Raises ConfigError for a workload that cannot be a name."""
    from imagefs.reference import TAG

    if not TAG.fullmatch(workload):
        raise ConfigError(f"{workload!r} is no name of a workload", hint="letters, digits, '.', '_' and '-'")
    return Recording(workload, 0.0, os.path.abspath(ready_file) if ready_file else "", no_record)


def settings_of(ctx: click.Context, url: str = "", config: str = "") -> Settings:
    return resolve(given(ctx), url=url, config=config)


def image_and_settings(ctx: click.Context, text: str, config: str) -> tuple[str, Settings]:
    """The image that `STORE#TAG` names, and the settings for its store."""
    reference = parse_reference(text)
    return reference.name, settings_of(ctx, reference.store, config)

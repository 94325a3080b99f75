"""What commands that use the daemon have in common: flags, settings, and which image is meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from imagefs.config import IMAGEFS, Settings, resolve
from imagefs.reference import parse_reference
from stripefs.cli.fastpath import Flag
from stripefs.cli.flags import given, settings_flags

__all__ = ["daemon_flags", "image_and_settings", "plain_flags", "settings_of"]

_F = TypeVar("_F", bound=Callable[..., Any])

daemon_flags = settings_flags(also=["runtime", "log-level"], options=IMAGEFS)
"""For commands that only talk to the daemon."""


def plain_flags(flags: Sequence[Flag]) -> Callable[[_F], _F]:
    """Those of `imagefs.cli.plain` as flags of a click command, in this order."""

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


def settings_of(ctx: click.Context, url: str = "", config: str = "") -> Settings:
    return resolve(given(ctx), url=url, config=config)


def image_and_settings(ctx: click.Context, text: str, config: str) -> tuple[str, Settings]:
    """The image that `STORE#TAG` names, and the settings for its store."""
    reference = parse_reference(text)
    return reference.name, settings_of(ctx, reference.store, config)

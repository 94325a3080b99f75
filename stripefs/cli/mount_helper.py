"""`mount.stripefs SOURCE DIR [-sfnv] [-o OPTIONS] [-t TYPE]`: mount helper of mount(8) and systemd for fstab's entries.

mount(8) adds `rw` to every mount that does not say `ro`, so `rw` asks for nothing here: the mount is made read-only and
a line says so. The option `writable`, or `rw = true` in the file of settings, allows writing. Exit codes are
mount(8)'s: 1 usage, 2 system, 4 internal, 8 interrupted, 32 mount failure.
"""

from __future__ import annotations

import getopt
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import stripefs
from stripefs.cli import mounting
from stripefs.cli.mounting import MountOptions, expand
from stripefs.cli.output import guarded, tell, wants_debug
from stripefs.errors import ConfigError, StripefsError

__all__ = ["Request", "exit_code", "main", "parse", "run"]

_USAGE = "mount.stripefs SOURCE DIR [-sfnv] [-o OPTIONS]"
_USAGE_ERROR, _SYSTEM_ERROR, _BUG, _INTERRUPTED, _FAILURE = 1, 2, 4, 8, 32


@dataclass(slots=True)
class Request:
    """The request of mount(8). fake: check everything, mount nothing."""

    source: str
    directory: str
    options: MountOptions = field(default_factory=MountOptions)
    fake: bool = False
    verbose: bool = False


def parse(arguments: Sequence[str]) -> Request:
    """The request in mount(8)'s arguments, flags before or after the two names. Raises ConfigError."""
    try:
        flags, names = getopt.gnu_getopt(list(arguments), "sfnvo:t:N:")
    except getopt.GetoptError as error:
        raise ConfigError(error.msg, hint=f"usage: {_USAGE}") from error
    if len(names) != 2:
        raise ConfigError(f"{len(names)} names given instead of a source and a directory", hint=f"usage: {_USAGE}")
    seen = {flag for flag, _ in flags}
    if "-N" in seen:
        raise ConfigError("-N is not supported", hint="enter the namespace with nsenter and mount there")
    options = expand([value for flag, value in flags if flag == "-o"], sloppy="-s" in seen)
    return Request(names[0], names[1], options, fake="-f" in seen, verbose="-v" in seen)


def exit_code(error: BaseException) -> int:
    """mount(8)'s number for what went wrong."""
    if isinstance(error, ConfigError):
        return _USAGE_ERROR
    if isinstance(error, StripefsError):
        return _FAILURE
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    return _SYSTEM_ERROR if isinstance(error, OSError) else _BUG


def main(arguments: Sequence[str]) -> int:
    """Mount as `arguments` say; the exit code, after any error has been printed to standard error."""

    def body() -> int:
        if list(arguments) in (["--version"], ["-V"]):
            sys.stdout.write(f"mount.stripefs {stripefs.__version__}\n")
            return 0
        if list(arguments) in (["--help"], ["-h"]):
            sys.stdout.write(f"Usage: {_USAGE}\n\nRun by mount(8) for the type stripefs; see stripefs mount --help.\n")
            return 0
        request = parse(arguments)
        options = request.options
        if options.writable is not None:
            options.given["rw"] = ("true", "-o writable") if options.writable else ("false", "-o ro")
        settings = mounting.prepare(request.source, request.directory, options)
        if options.read_write and not settings.mount.rw:
            tell("mounting read-only", "say ro in the options to silence this line, or writable to write")
        code = 0 if request.fake else mounting.start(settings)
        if request.verbose and code == 0:
            from stripefs.settings import redact

            sys.stdout.write(f"{redact(settings.store.url)} mounted on {settings.mount.mountpoint}\n")
        return code

    return guarded(body, debug=wants_debug(arguments), code_of=exit_code)


def run() -> int:
    """The console script."""
    return main(sys.argv[1:])

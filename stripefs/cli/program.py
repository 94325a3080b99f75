"""Start of a program of many commands, such as `stripefs`.

The page of `PROGRAM --help` is written here from the table of commands without importing click or anything else beyond
what the bare interpreter has, because click alone costs as much as starting Python twice. Every other invocation goes
on to `stripefs.cli.commands`, which imports only the module of the command that was asked for; but for the commands
that are to start at once, which read plain lines themselves (`stripefs.cli.fastpath`).
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

__all__ = ["Program"]

_COLLECT_AFTER = 50_000
"""Objects after which the garbage collector looks for cycles. Modules that are loaded make thousands and no garbage;
with Python's own 700 the looks for it took a sixth of the start of `imagefs run`."""


class Program:
    """A command: its name, the package of its modules, one line for each command, and its page, in which `{commands}`
    stands for those lines.

    families: by module of the package, the commands that it holds, each as NAME_command; any other command is `command`
    in the module NAME.
    hint: says what to do about a word that is no command.
    plain: by command, MODULE:FUNCTION of a parser: it takes the arguments and returns the function to call, or None to
    leave them to click.
    """

    def __init__(
        self,
        name: str,
        package: str,
        commands: dict[str, str],
        page: str,
        hint: Callable[[str], str],
        plain: Mapping[str, str] | None = None,
        families: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.name = name
        self.package = package
        self.commands = commands
        self.hint = hint
        self._page = page
        self._plain = plain or {}
        self._families = families or {}

    def home(self, name: str) -> tuple[str, str]:
        """The module that holds the click command of this name, and the command's name in it."""
        for module, names in self._families.items():
            if name in names:
                return f"{self.package}.{module}", f"{name}_command"
        return f"{self.package}.{name}", "command"

    def page(self) -> str:
        """The text of `PROGRAM --help`."""
        width = max(map(len, self.commands))
        lines = "\n".join(f"  {name:{width}}  {line}" for name, line in self.commands.items())
        return self._page.format(commands=lines)

    def run(self) -> int:
        """Handle sys.argv and answer the exit code."""
        _open_streams()
        arguments = sys.argv[1:]
        if arguments in (["--help"], ["-h"]):
            try:
                sys.stdout.write(self.page())
                sys.stdout.flush()
            except BrokenPipeError:
                from stripefs.cli.output import broken_pipe_code

                return broken_pipe_code()
            return 0
        completing = f"_{self.name.upper()}_COMPLETE" in os.environ  # by which a shell asks for words
        if not arguments and not completing:
            sys.stderr.write(self.page())
            return 2
        if not completing and arguments[0] in self._plain:
            import gc

            gc.set_threshold(_COLLECT_AFTER)
            module, _, function = self._plain[arguments[0]].partition(":")
            try:
                body = getattr(_loaded(module), function)(arguments[1:])
            except ImportError as error:
                body = _failing(error)
            if body is not None:
                from stripefs.cli.output import guarded, wants_debug

                return guarded(body, debug=wants_debug(arguments, self.name), program=self.name)
        code = self.main(arguments)
        if "stripefs.api.engine" in sys.modules:
            _leave(code)
        return code

    def main(self, arguments: Sequence[str]) -> int:
        """Have click handle these arguments; the exit code, after any error has been printed to standard error."""
        code: int = _loaded("stripefs.cli.commands").main(self, arguments)
        return code


def _loaded(module: str) -> Any:
    """The module of that name, without `importlib`, which would be loaded for it."""
    __import__(module)
    return sys.modules[module]


def _failing(error: ImportError) -> Callable[[], int]:
    """A body that raises `error` where errors are printed for the user."""

    def body() -> int:
        raise error

    return body


def _open_streams() -> None:
    """Let standard streams that were closed lead nowhere: another file would have their number, and get what libraries
    print. Programs that are run from here have them closed as before."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 it stays open


def _leave(code: int) -> None:
    """End the process now that its engine has. A thread that is in the library of a store still would come back into an
    interpreter that is gone, which ends the process by SIGABRT."""
    import contextlib

    sys.modules["stripefs.api.engine"].stop()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # its reader is gone
            stream.flush()
    os._exit(code)

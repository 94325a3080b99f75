"""Commands that install, for lines that are not read without click, and the key of an installation.

`imagefs deps run --target DIR -- COMMAND`, `pip`, `uv` and `venv --target DIR -r FILE`, and `key -- COMMAND`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from imagefs.cli.common import json_flag, plain_flags, print_json
from imagefs.cli.deps.fastpath import INSTALL, SECTIONS, begin, named_store
from imagefs.cli.flags import REQUEST, locks_of, request_of
from imagefs.config import IMAGEFS, Settings, resolve
from stripefs.cli.commands import SettingsCommand, given, settings_flags
from stripefs.cli.output import table, tell
from stripefs.errors import ConfigError

if TYPE_CHECKING:
    from imagefs.deps.keybuilder import Answer

__all__ = ["installing", "key_command", "pip_command", "run_command", "show_key", "uv_command", "venv_command"]


def installing(name: str, text: str, metavar: str = "ARGUMENTS…") -> click.Command:
    """The command of one of `fastpath.FORMS`, for lines that are not read without click; `text` is its page."""

    @click.command(name, cls=SettingsCommand, help=text, context_settings={"ignore_unknown_options": name != "run"})
    @click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar=metavar)
    @plain_flags(INSTALL)
    @settings_flags(*SECTIONS, options=IMAGEFS)
    @click.pass_context
    def command(ctx: click.Context, /, arguments: tuple[str, ...], **values: Any) -> int:
        return begin(name, arguments, values, given(ctx))

    return command


_SHOWN_ENDS = 50
"""Lines of what may change: more than a screen."""


def show_key(key_answer: Callable[[bool], Answer], *, explain: bool, as_json: bool = False, prefix: str = "") -> None:
    """Print the key on standard output: its digest, every component besides, or the document.

    key_answer: answers, with all that may change taken for unchanged when it is given True. prefix: of the flags that
    hints name. Raises ConfigError where there is no key, after it was shown what may change; and what `key_answer`
    raises.
    """
    from imagefs.deps import key as keys

    found = key_answer(False).found
    open_ends = [] if isinstance(found, keys.Key) else found.open_ends
    key = key_answer(True).found if open_ends else found
    assert isinstance(key, keys.Key)  # it was only refused for what is allowed now
    if as_json:
        shown = {"digest": "" if open_ends else key.digest, "key": key.to_document()}
        print_json({**shown, "open_ends": [one._asdict() for one in open_ends]})
    elif explain:
        sys.stdout.write(table(keys.explain(key)) + "\n" + ("" if open_ends else f"\n{key.digest}\n"))
    elif not open_ends:
        sys.stdout.write(key.digest + "\n")
    if open_ends:
        if not as_json:
            for one in open_ends[:_SHOWN_ENDS]:
                tell(str(one), program="imagefs")
            if more := open_ends[_SHOWN_ENDS:]:
                tell(f"and {len(more)} more, which --json tells", program="imagefs")
        raise ConfigError(
            f"there is no key, since {len(open_ends)} of the inputs may change",
            hint=f"--{prefix}epoch TEXT or --{prefix}allow-unpinned makes one",
        )


_RUN_PAGE = """\
Provide in DIR the files that COMMAND installs: mounted where the store has them, else installed and published.

Ends with the status of COMMAND, or with 0 where it had not to run. One line says which it was, and why.
"""
run_command = installing("run", _RUN_PAGE, "-- COMMAND…")

_PIP_PAGE = """\
As `imagefs deps run` with `python3 -m pip install --target DIR ARGUMENTS…`.

Words that are no options below go to pip, -r FILE for example.
"""
pip_command = installing("pip", _PIP_PAGE)

_UV_PAGE = """\
As `imagefs deps run` with `uv pip install --target DIR ARGUMENTS…`.

Words that are no options below go to uv, -r FILE for example.
"""
uv_command = installing("uv", _UV_PAGE)

_VENV_PAGE = """\
Provide in DIR a virtual environment with the packages of `pip install ARGUMENTS…`, and without pip.

Words that are no options below go to pip, -r FILE for example.
"""
venv_command = installing("venv", _VENV_PAGE)


@click.command("key", cls=SettingsCommand)
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...")
@plain_flags(REQUEST)
@click.option("--explain", is_flag=True, help="Show every component.")
@json_flag
def key_command(words: tuple[str, ...], explain: bool, as_json: bool, **values: Any) -> None:
    """Print the key of an installation, and install nothing.

    COMMAND is the command that would install. Each changeable input, such as a name without a version, is a line; then
    there is no key without --epoch or --allow-unpinned.
    """
    from imagefs.deps.keybuilder import ask

    request, locks = request_of(values, words), locks_of(_settings(), make=False)

    def key_answer(allow: bool) -> Answer:
        return ask(request._replace(allow_unpinned=True) if allow else request, locks)

    show_key(key_answer, explain=explain, as_json=as_json)


def _settings() -> Settings:
    """The settings of the environment and the files; a store need not be named."""
    settings = resolve({})
    return named_store(settings) if settings.deps.store else settings

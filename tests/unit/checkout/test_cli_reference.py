"""docs/reference and the man pages: they are what the click commands declare now, and lack no command and no option."""

from __future__ import annotations

import re

import pytest
from cliref import man, markdown
from cliref.model import REFERENCES, CommandEntry, Reference

from stripefs import __version__
from stripefs.cli import mount_helper
from stripefs.cli.mounting import expand
from stripefs.config import STRIPEFS
from stripefs.errors import ConfigError, MountError
from tests.support.checkout import CHECKOUT
from tests.support.prose import headless

PROGRAM = pytest.mark.parametrize("program", REFERENCES, ids=lambda program: program.name)


def commands(program: Reference) -> list[CommandEntry]:
    return list(program.root().walk())[1:]


@PROGRAM
def test_the_committed_page_is_the_one_that_is_generated(program: Reference) -> None:
    page = CHECKOUT / "docs/reference" / f"{program.name}.md"
    assert page.read_text() == markdown.page(program), "run ./scripts/docs, which writes it"


def test_the_committed_man_pages_are_those_that_are_generated() -> None:
    generated = {name: text for program in REFERENCES for name, text in man.pages(program, __version__).items()}
    generated["mount.stripefs.8"] = man.helper(STRIPEFS, __version__)
    committed = {page.name: page.read_text() for page in (CHECKOUT / "docs/man").iterdir()}
    assert committed == generated, "run ./scripts/docs, which writes them"


@PROGRAM
def test_both_pages_have_each_command_with_each_flag_and_value(program: Reference) -> None:
    text, pages = markdown.page(program), man.pages(program, __version__)
    for command in commands(program):
        _, _, part = text.partition(f" `{command.path}`\n\n    {command.usage}\n")
        part = re.split(r"^##", part, maxsplit=1, flags=re.MULTILINE)[0]
        for flag in command.flags:
            assert "--help" in flag.names or f"`{flag.names}" in part, (command.path, flag.names)
            assert man.escaped(flag.names) in pages[f"{program.name}-{command.path.split(' ')[1]}.1"], command.path
            if flag.setting is None:
                assert all(f"`{value}`" in part for value in flag.values), (command.path, flag.names)
    settings = text.partition("\n## Settings\n")[2]
    for option in program.options.all:
        (row,) = [line for line in settings.splitlines() if f"| `{option.variable}` |" in line]
        assert f"`{option.section}.{option.name}`" in row
        assert all(f"`{value}`" in row for value in option.choices)


@PROGRAM
def test_no_line_of_help_begins_with_a_clause_without_its_subject(program: Reference) -> None:
    lines = [*program.options.titles.values(), *(option.help for option in program.options.all)]
    for command in commands(program):
        lines += [*command.text, *(flag.help for flag in command.flags)]
    assert [line for line in lines if headless(line) or re.match(r"Where [a-z]", line)] == []
    assert headless("How HDFS is read.")


def test_text_cannot_be_taken_for_a_request_of_roff() -> None:
    """A line that begins with a dot would not be shown."""
    assert man.escaped(".SH NAME") == "\\&.SH NAME"
    assert man.escaped("a\\b `-x`") == "a\\eb \\-x"


def test_the_page_of_the_helper_of_mount_has_what_the_helper_takes() -> None:
    page = man.helper(STRIPEFS, __version__).replace("\\-", "-").replace("\\e", "\\")
    flags, words = page.partition(".SH OPTIONS")[2].split(".SH MOUNT OPTIONS")
    for flag in re.findall(r"^\\fB-(\w)", flags, re.MULTILINE):
        value = {"o": ["memory=4G"], "t": ["stripefs"]}.get(flag, [])
        if flag not in "Vh":
            mount_helper.parse([f"-{flag}", *value, "/a", "/b"])
    terms, settings = words.partition(".SH EXIT STATUS")[0].split("All settings of")
    named = [word for term in re.findall(r"^\\fB(.+)\\fR$", terms, re.MULTILINE) for word in term.split(", ")]
    assert len(named) > 20
    for word in named:
        expand([f"{word.partition('=')[0]}=1" if "=" in word else word])
    for option in STRIPEFS.all:
        expand([option.name if option.is_switch else f"{option.name.replace('-', '_')}=1"])
        assert re.search(rf"[ \n]{option.name}[=,.]", settings), option.name
    exits = page.partition(".SH EXIT STATUS")[2]
    raised = [ConfigError("a"), OSError(), ValueError(), KeyboardInterrupt(), MountError("b")]
    codes = {0, *map(mount_helper.exit_code, raised)}
    assert {int(code) for code in re.findall(r"^\\fB(\d+)\\fR$", exits, re.MULTILINE)} == codes

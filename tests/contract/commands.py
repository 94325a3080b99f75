"""Conformance of `stripefs` and `imagefs`: their pages, their names and their completion.

A test module subclasses `CommandConformance` with its command's modules, and is checked.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import click
import pytest

import stripefs
from stripefs.cli.commands import group
from stripefs.cli.program import Program

__all__ = ["CommandConformance", "completed", "forget_settings", "program", "said"]


def program(name: str) -> Path:
    """The installed command."""
    return Path(sys.executable).with_name(name)


def forget_settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands find no file and no variable that configures them."""
    monkeypatch.setenv("HOME", str(home))
    for name in [name for name in os.environ if name.startswith(("STRIPEFS_", "IMAGEFS_"))]:
        monkeypatch.delenv(name)


def said(command: Program, capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    code = command.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def completed(name: str, words: str) -> list[str]:
    """Bash's completions for the last of these words."""
    environ = os.environ | {
        f"_{name.upper()}_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run([program(name), "x"], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.split()


class CommandConformance:
    """name: the command's. first_module: the one that it begins in."""

    name: str
    first_module: ModuleType

    def test_every_command_is_there_and_described_as_on_the_page(self) -> None:
        commands = group(self.first_module.PROGRAM)
        context = click.Context(commands)
        for name in self.first_module.COMMANDS:
            command = commands.get_command(context, name)
            assert command is not None
            assert command.name == name
            assert command.help

    def test_every_page_can_be_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        for name in self.first_module.COMMANDS:
            code, out, err = said(self.first_module.PROGRAM, capsys, [name, "--help"])
            assert (code, err) == (0, "")
            assert out.startswith(f"Usage: {self.name} {name} ")

    def test_both_ways_to_the_page_agree(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "argv", [self.name, "--help"])
        assert self.first_module.run() == 0
        page = capsys.readouterr().out
        assert page == self.first_module.page()
        commands = group(self.first_module.PROGRAM)
        assert commands.get_help(click.Context(commands)) == page.rstrip()
        assert all(len(text) <= 80 for text in page.splitlines())

    def test_without_arguments_the_page_is_an_error(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "argv", [self.name])
        assert self.first_module.run() == 2
        assert capsys.readouterr() == ("", self.first_module.page())

    def test_the_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        expected = (0, f"{self.name} {stripefs.__version__}\n", "")
        assert said(self.first_module.PROGRAM, capsys, ["--version"]) == expected

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_completion_scripts(self, capsys: pytest.CaptureFixture[str], shell: str) -> None:
        code, out, err = said(self.first_module.PROGRAM, capsys, ["completion", shell])
        assert (code, err) == (0, "")
        assert f"_{self.name.upper()}_COMPLETE" in out

"""The command, run in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from imagefs.cli.main import PROGRAM


class Command:
    """Runs the command; calling it answers its output, which has to come with exit code 0."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> str:
        code, out, err = self.run(*arguments)
        assert (code, err) == (0, "")
        return out

    def json(self, *arguments: object) -> Any:
        return json.loads(self(*arguments, "--json"))

    def run(self, *arguments: object) -> tuple[int, str, str]:
        code = PROGRAM.main([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        return code, out, err


@pytest.fixture
def imagefs(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)

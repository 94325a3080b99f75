"""The command `imagefs` from its arguments to its exit code and its one line on standard error, without a store."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from imagefs.cli import main as start
from imagefs.cli.common import Bar
from tests.contract.commands import CommandConformance, completed, forget_settings
from tests.unit.imagefs.cli.conftest import Command


@pytest.fixture(autouse=True)
def no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_settings(tmp_path, monkeypatch)


class TestImagefs(CommandConformance):
    name = "imagefs"
    first_module = start


@pytest.mark.parametrize(
    ("arguments", "code", "what", "hint"),
    [
        (["biuld"], 2, "'biuld' is not a command", "did you mean build?"),
        (["/srv/images#app"], 2, "is not a command", "did you mean imagefs mount /srv/images#app"),
        (["build", "dir:/", "/srv#app"], 2, "names an image where a store belongs", "leave #app out"),
        (["build", "dir:/", "/srv", "--max-entires", "3"], 2, "No such option '--max-entires'", "--max-entries"),
        (["build", "dir:/", "/srv", "--max-entries", "x"], 2, "--max-entries: 'x' is not a whole number", ""),
        (["build", "dir:/", "/srv", "--trace", "x", "--no-trace"], 2, "contradict each other", ""),
        (["inspect", "/srv"], 2, "names no image", "`imagefs ls STORE` lists them"),
        (["ls", "gopher://host/x"], 2, "unknown scheme 'gopher'", "s3://"),
        (["gc", "/srv", "--older-than", "1h"], 2, "--older-than 1h is less than a day", "--force"),
        (["verify", "/srv", "--config", "/none"], 2, "/none does not exist", "IMAGEFS_CONFIG"),
        (["trace", "show", "/none"], 2, "'/none' is no file that is there", "STORE#TAG"),
        (["trace", "show", "/srv#app/a/b/c"], 2, "names no trace", "STORE#TAG/WORKLOAD/NAME"),
        (["push", "/store#app", "/elsewhere"], 2, "names no repository of a registry", "write oci://HOST/NAME"),
        (["pull", "/store#app", "/elsewhere"], 2, "names no image of a registry", "`imagefs push` copies into one"),
        (["push", "/store#app", "oci://h/n@sha256:" + "ab" * 32], 2, "is a digest where a tag belongs", ""),
        (["convert", "oci://h/n:1"], 2, "is no image of a registry", "write docker://h/n:1"),
        (["ls", "/none"], 3, "/none: No such file or directory", ""),
        (["build", "dir:/none", "STORE"], 4, "/none cannot be read: No such file or directory", ""),
        (["build", "oci:/none", "STORE"], 4, "oci-layout is missing in /none", ""),
        (["build", "dir:/usr/bin", "STORE", "-t", "../x"], 2, "'../x' is no tag", ""),
        (["build", "dir:/usr/bin", "STORE", "--platform", "amd64"], 2, "'amd64' is no platform", ""),
        (["inspect", "STORE#app"], 3, "has no image 'app'", ""),
        (["verify", "STORE#app"], 3, "has no image 'app'", ""),
        (["ls", "http://127.0.0.1:9/x"], 3, "cannot be listed", ""),
        (["build", "dir:/usr/bin", "http://127.0.0.1:9/x"], 3, "cannot be written to", ""),
    ],
)
def test_what_cannot_be_is_one_line_with_the_code_of_its_kind(
    imagefs: Command, tmp_path: Path, arguments: list[str], code: int, what: str, hint: str
) -> None:
    (tmp_path / "store").mkdir()
    arguments = [argument.replace("STORE", str(tmp_path / "store")) for argument in arguments]
    found, out, err = imagefs.run(*arguments)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert err.startswith("imagefs: ")
    assert what in err
    assert hint in err


@pytest.mark.parametrize(
    ("words", "offered"),
    [("imagefs opt", "optimize"), ("imagefs trace me", "merge"), ("imagefs run --pids", "--pids-limit")],
)
def test_completion(words: str, offered: str) -> None:
    assert completed("imagefs", words) == [f"plain,{offered}"]


def test_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    bar = Bar(out)
    bar.stage("storing", 4 << 20)
    bar.advance(1 << 20)
    assert bar.line().startswith("storing     [======                  ]  25%  1 MiB of 4 MiB  ")
    bar.stage("fetching")
    assert bar.line() == "fetching  "
    bar.advance(3 << 20)
    assert "3 MiB" in bar.line()
    bar.clear()
    assert out.getvalue().endswith("\r\x1b[K")
    assert "\n" not in out.getvalue()

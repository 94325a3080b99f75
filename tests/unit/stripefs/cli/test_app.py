"""The command from its arguments to its exit code and its one line on standard error, nothing mounted."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stripefs.cli import main as start
from stripefs.cli import mounting, status
from stripefs.cli.output import guarded, wants_debug
from stripefs.errors import ConfigError, MountError, NotFound
from stripefs.fuse import daemonize
from stripefs.settings import MIB, Settings
from tests.contract.commands import CommandConformance, completed, program
from tests.unit.stripefs.cli.conftest import Run


class TestStripefs(CommandConformance):
    name = "stripefs"
    first_module = start


@pytest.mark.parametrize(
    ("arguments", "code", "what", "hint"),
    [
        (["info", "/nowhere/at/all"], 3, "/nowhere/at", ""),
        (["gc", "http://127.0.0.1:1/"], 3, "cannot be listed", ""),
        (["recover", "/nowhere/at/all"], 3, "/nowhere/at", ""),
        (["recover", "/nowhere", "--to", "a/b"], 2, "--to 'a/b' is not a name", ""),
        (["recover", "/nowhere", "--to", ".."], 2, "is not a name", ""),
        (["recover", "/"], 2, "names no file", ""),
        (["cache", "ls"], 2, "no cache folder is named", ""),
        (["warm", "/"], 2, "no cache folder is named", ""),
        (["ls", "hdfs:/x"], 2, "is no URL: two slashes go behind the colon", ""),
        (["ls", "file:///a%00b"], 2, "holds a NUL byte, which no name can", ""),
        (["cp", "throttled+file:/a", "b"], 2, "is no URL: two slashes go behind the colon", ""),
        *(
            (["rm", "-rf", path], 2, "no name that could be removed", "")
            for path in ("/", "..", "file:///", "s3://bucket")
        ),
        (["mont"], 2, "'mont' is not a command", "did you mean mount?"),
        (
            ["hdfs://nn/data", "/mnt"],
            2,
            "'hdfs://nn/data' is not a command",
            "did you mean stripefs mount hdfs://nn/data",
        ),
        (["mount"], 2, "Missing argument 'SOURCE'", "see stripefs mount --help"),
        (["mount", "/a", "/b", "--thread", "3"], 2, "No such option '--thread'", "--threads"),
        (["mount", "/a", "/b", "--threads", "x"], 2, "--threads: 'x' is not a whole number", ""),
        (["mount", "/a", "/b", "-o", "threads=x"], 2, "-o threads: 'x' is not a whole number", ""),
        (["mount", "/a", "/b", "--unit", "3M"], 2, "--unit: 3M is no power of two", "4MiB"),
        (["mount", "/a", "/b", "--config", "/none"], 2, "/none does not exist", "--config"),
        (["mount", "", "/b"], 2, "the source is empty", "hdfs://"),
        (["probe", "/a", "--size", "1k"], 2, "--size 1k is too small", "64MiB"),
        (["completion", "tcsh"], 2, "'tcsh' is not one of 'bash', 'zsh', 'fish'", "see stripefs completion --help"),
    ],
)
def test_misuse_is_one_line(run: Run, arguments: list[str], code: int, what: str, hint: str) -> None:
    found, out, err = run(*arguments)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert err.startswith("stripefs: ")
    assert what in err
    assert hint in err


def test_a_mount_from_flags_which_beat_mount_options_and_these_variables(
    mounted: list[tuple[Settings, bool]], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("THREADS", "1"), ("PER_HOST", "1"), ("UMASK", "077")):
        monkeypatch.setenv(f"STRIPEFS_{name}", text)
    options = ["-o", "threads=2,per_host=2,noexec", "--threads", "3", "--range-size", "16MiB", "--no-hedge"]
    assert run("mount", "hdfs://nn/data", "relative", *options, "--hdfs-transport", "webhdfs", "-f") == (0, "", "")
    [(settings, foreground)] = mounted
    assert foreground
    assert (settings.store.url, settings.store.transport) == ("hdfs://nn/data", "webhdfs")
    assert (settings.read.threads, settings.read.per_host, settings.mount.umask) == (3, 2, 0o077)
    assert (settings.read.range_size, settings.read.hedge) == (16 * MIB, False)
    assert (settings.mount.mountpoint, settings.mount.options) == (os.path.abspath("relative"), ("noexec",))


def test_a_local_source_becomes_absolute(mounted: list[tuple[Settings, bool]], run: Run, tmp_path: Path) -> None:
    run("mount", "data", "/b")
    run("mount", "~/data", "/b")
    assert [settings.store.url for settings, _ in mounted] == [os.path.abspath("data"), str(tmp_path / "data")]


@pytest.mark.parametrize(("line_in_conf", "allowed"), [("user_allow_other", True), ("#user_allow_other", False)])
def test_a_plain_user_needs_leave_to_let_others_in(
    mounted: list[tuple[Settings, bool]],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    line_in_conf: str,
    allowed: bool,
) -> None:
    conf = tmp_path / "fuse.conf"
    conf.write_text(f"# mount_max = 1000\n{line_in_conf}\n")
    monkeypatch.setattr(mounting, "FUSE_CONF", conf)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    code, _, err = run("mount", "/a", "/b", "--allow-other")
    assert (code == 0) == allowed
    assert ("add the line user_allow_other" in err) != allowed
    assert run("mount", "/a", "/b")[0] == 0


@pytest.mark.parametrize(
    ("uid", "message", "told"),
    [
        (1000, "/m cannot be mounted: failed to open /dev/fuse: Permission denied", True),
        (1000, "/m is busy", False),
        (0, "/m cannot be mounted: Operation not permitted", False),
    ],
)
def test_who_lacks_a_privilege_is_told_how_sudo_finds_us(
    run: Run, monkeypatch: pytest.MonkeyPatch, uid: int, message: str, told: bool
) -> None:
    def refuse(settings: Settings) -> int:
        raise MountError(message)

    monkeypatch.setattr(daemonize, "start", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    code, _, err = run("mount", "/a", "/b", "--no-allow-other")
    assert code == 32
    assert ('sudo "$(command -v stripefs)" mount' in err) == told


def test_watching_goes_on_until_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = iter([None, KeyboardInterrupt()])

    def pause(seconds: float) -> None:
        if (outcome := next(pauses)) is not None:
            raise outcome

    monkeypatch.setattr(status, "_chosen", lambda mountpoint: [])
    monkeypatch.setattr(status.time, "sleep", pause)
    code, out, err = run("status", "--watch", "--json")
    assert (code, out, err.strip()) == (130, "[]\n[]\n", "stripefs: interrupted")


def test_values_of_options_are_completed() -> None:
    assert completed("stripefs", "stripefs mount --hdfs-transport w") == ["plain,webhdfs"]


def test_status_of_what_is_no_mount(run: Run, tmp_path: Path) -> None:
    for command in ("status", "umount"):
        code, out, err = run(command, str(tmp_path))
        assert (code, out) == (32, "")
        assert err.startswith(f"stripefs: {tmp_path} is not")


def fail(error: BaseException) -> Callable[[], int]:
    def body() -> int:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (NotFound("no such file", hint="look elsewhere"), 3, "stripefs: no such file; look elsewhere\n"),
        (MountError("busy"), 32, "stripefs: busy\n"),
        (ConfigError("two\nlines", hint="and\n  more"), 2, "stripefs: two lines; and more\n"),
        (ExceptionGroup("g", [ExceptionGroup("h", [MountError("inner")])]), 32, "stripefs: inner\n"),
        (KeyboardInterrupt(), 130, "stripefs: interrupted\n"),
        (
            ValueError("odd"),
            1,
            "stripefs: internal error: ValueError: odd; "
            "run it again with STRIPEFS_LOG_LEVEL=debug and report what it prints\n",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_at_the_border(capsys: pytest.CaptureFixture[str], error: BaseException, code: int, text: str) -> None:
    assert guarded(fail(error), debug=False) == code
    assert capsys.readouterr() == ("", text)


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    guarded(fail(NotFound("no such file")), debug=True)
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.endswith("stripefs: no such file\n")


def test_when_debug_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wants_debug(["mount", "--log-level", "debug"])
    assert wants_debug(["mount", "--log-level=debug"])
    assert wants_debug(["a", "b", "-o", "ro,log_level=debug"])
    assert not wants_debug(["mount", "--log-level", "info", "debug"])
    monkeypatch.setenv("STRIPEFS_LOG_LEVEL", "debug")
    assert wants_debug([])


@pytest.mark.parametrize("words", [["mount.stripefs"], ["stripefs", "mount"], ["stripefs"]])
def test_a_reader_of_our_output_that_left_is_no_news(words: list[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as output:
        command = [program(words[0]), *words[1:], "--help"]
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")

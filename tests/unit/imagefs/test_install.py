"""Units of systemd: what they say, and what becomes of them on disk."""

from __future__ import annotations

import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from imagefs import install
from imagefs.cli.main import PROGRAM
from imagefs.install import DAEMON, SERVICES, SNAPSHOTTER, STRIPEFS, units
from stripefs.errors import ConfigError
from tests.contract.commands import said

UNITS = units("/opt/bootseer/bin/imagefs", "/opt/bootseer/bin/stripefs")


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Takes the commands that would change this machine's systemd, which is not asked."""
    run = Mock(return_value=subprocess.CompletedProcess([], 0, "", ""))
    monkeypatch.setattr(install.subprocess, "run", run)
    return run


@pytest.mark.parametrize("name", UNITS)
def test_no_service_gets_a_mount_namespace_of_its_own(name: str) -> None:
    hiding = ("Private", "Protect", "ReadOnly", "ReadWrite", "Inaccessible", "TemporaryFileSystem", "Bind", "Dynamic")
    assert not [line for line in UNITS[name].splitlines() if line.startswith(hiding)]


def test_a_path_that_systemd_would_take_apart_is_quoted() -> None:
    made = units("/opt/a b/100%/imagefs", "/x/stripefs")
    assert 'ExecStart="/opt/a b/100%%/imagefs" daemon' in made[DAEMON]


def test_units_are_written_updated_left_alone_and_removed(tmp_path: Path) -> None:
    old = units("/old/imagefs", "/old/stripefs")
    assert set(install.install(old, str(tmp_path)).values()) == {"written"}
    assert set(install.install(UNITS, str(tmp_path)).values()) == {"updated"}
    assert set(install.install(UNITS, str(tmp_path)).values()) == {"unchanged"}
    folder = tmp_path / install.FOLDER
    assert {file.name: file.read_text() for file in folder.iterdir()} == UNITS
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o644}
    assert set(install.remove(list(UNITS), str(tmp_path)).values()) == {"removed"}
    assert list(folder.iterdir()) == []
    assert set(install.remove(list(UNITS), str(tmp_path)).values()) == {"absent"}


def test_an_edited_unit_or_one_of_another_keeps_all_from_being_written(tmp_path: Path) -> None:
    install.install(units("/old/imagefs", "/old/stripefs"), str(tmp_path))
    edited = tmp_path / install.FOLDER / SNAPSHOTTER
    for text in (edited.read_text() + "Nice=5\n", "[Service]\nExecStart=/bin/true\n"):
        edited.write_text(text)
        with pytest.raises(ConfigError, match=r"imagefs-snapshotter\.service is not as"):
            install.install(UNITS, str(tmp_path))
        assert "/old/imagefs" in (tmp_path / install.FOLDER / DAEMON).read_text()
        with pytest.raises(ConfigError, match=r"imagefs-snapshotter\.service is not as"):
            install.remove(list(UNITS), str(tmp_path))
        assert edited.read_text() == text
    assert set(install.install(UNITS, str(tmp_path), force=True).values()) == {"updated"}


def test_the_command_prints_writes_and_removes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], systemd: Mock
) -> None:
    code, out, _ = said(PROGRAM, capsys, ["install", "--print", "--bin", "/opt/bootseer/bin"])
    assert (code, list(tmp_path.iterdir())) == (0, [])
    assert all(text in out for text in UNITS.values())
    arguments = ["install", "--prefix", str(tmp_path), "--bin", "/opt/bootseer/bin"]
    code, out, err = said(PROGRAM, capsys, arguments)
    assert (code, err, len(out.splitlines())) == (0, "", len(UNITS))
    code, out, _ = said(PROGRAM, capsys, [*arguments, "--remove"])
    assert (code, out.count(": removed")) == (0, len(UNITS))
    assert not systemd.called  # units below a prefix are another system's


def test_enabling_reads_the_units_again_first_and_disabling_stops_first(systemd: Mock) -> None:
    install.reload("enable")
    install.reload("disable")
    reread = ["systemctl", "daemon-reload"]
    enable, disable = (["systemctl", action, "--now", *SERVICES] for action in ("enable", "disable"))
    assert [one.args[0] for one in systemd.call_args_list] == [reread, enable, disable, reread]


def test_what_systemd_says_is_told(systemd: Mock) -> None:
    systemd.return_value = subprocess.CompletedProcess([], 1, "", "System has not been booted with systemd\nmore\n")
    with pytest.raises(ConfigError, match="daemon-reload: System has not been booted with systemd"):
        install.reload()


@pytest.mark.parametrize("other", [["--remove"], ["--prefix", "/tmp/x"]])
def test_enabling_contradicts(capsys: pytest.CaptureFixture[str], other: list[str]) -> None:
    code, _, err = said(PROGRAM, capsys, ["install", "--enable", *other])
    assert code == 2
    assert "contradict each other" in err


def test_systemd_understands_the_units(tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("imagefs", "stripefs"):
        (commands / name).write_text("#!/bin/sh\n")
        (commands / name).chmod(0o755)
    made = units(str(commands / "imagefs"), str(commands / "stripefs"))
    folder = tmp_path / install.FOLDER
    install.install(made, str(tmp_path))
    (folder / STRIPEFS).rename(folder / "stripefs@checkpoints.service")
    files = [folder / name for name in (*SERVICES, "stripefs@checkpoints.service")]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if str(tmp_path) in line or "imagefs" in line] == []
    assert done.returncode == 0

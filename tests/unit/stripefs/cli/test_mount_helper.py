"""mount.stripefs as mount(8) calls it."""

import pytest

from stripefs.cli import mount_helper, mounting
from stripefs.errors import ConfigError, MountError, NotFound, StripefsError
from stripefs.settings import Settings

Mounts = list[tuple[Settings, bool]]


def test_the_call_that_mount_makes(mounted: Mounts, capsys: pytest.CaptureFixture[str]) -> None:
    fstab = "ro,nosuid,_netdev,nofail,x-systemd.automount,range_size=4M,hdfs_user=me"
    assert mount_helper.main(["hdfs://nn/data", "/mnt", "-o", fstab]) == 0
    assert (mounted[0][0].store.url, mounted[0][0].mount.mountpoint) == ("hdfs://nn/data", "/mnt")
    assert (mounted[0][0].read.range_size, mounted[0][0].store.hdfs_user) == (4 << 20, "me")
    assert mounted[0][0].mount.options == ("nosuid",)
    assert capsys.readouterr() == ("", "")


def test_rw_is_mounted_ro_with_a_line(mounted: Mounts, capsys: pytest.CaptureFixture[str]) -> None:
    assert mount_helper.main(["-o", "rw,_netdev", "/data", "/mnt"]) == 0
    assert len(mounted) == 1
    assert (
        capsys.readouterr().err
        == "stripefs: mounting read-only; say ro in the options to silence this line, or writable to write\n"
    )
    assert not mounted[0][0].mount.rw


@pytest.mark.parametrize(
    ("options", "variable", "rw"),
    [
        ("rw,writable", "", True),
        ("ro,writable", "", True),
        ("writable,ro", "", False),
        ("rw", "true", True),
        ("ro", "true", False),
    ],
)
def test_writable_is_a_wish_that_mount_does_not_add(
    mounted: Mounts,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    variable: str,
    rw: bool,
) -> None:
    monkeypatch.setenv("STRIPEFS_RW", variable)
    assert mount_helper.main(["-o", options, "/data", "/mnt"]) == 0
    assert mounted[0][0].mount.rw is rw
    assert capsys.readouterr() == ("", "")


def test_fake_mounts_nothing_but_checks(mounted: Mounts) -> None:
    assert mount_helper.main(["/data", "/mnt", "-f"]) == 0
    assert mount_helper.main(["/data", "/mnt", "-f", "-o", "threads=x"]) == 1
    assert not mounted


def test_verbose_says_what_was_mounted(mounted: Mounts, capsys: pytest.CaptureFixture[str]) -> None:
    assert mount_helper.main(["/data", "/mnt", "-v", "-n", "-t", "fuse.stripefs", "-o", "ro"]) == 0
    assert capsys.readouterr().out == "/data mounted on /mnt\n"


def test_sloppy_drops_what_it_does_not_know(mounted: Mounts) -> None:
    assert mount_helper.main(["/data", "/mnt", "-s", "-o", "ro,frobnicate,threads=3"]) == 0
    assert mounted[0][0].read.threads == 3
    assert mount_helper.main(["/data", "/mnt", "-o", "ro,frobnicate"]) == 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "0 names given"),
        (["/data"], "1 names given"),
        (["/data", "/mnt", "-x"], "option -x not recognized"),
        (["/data", "/mnt", "-o"], "option -o requires argument"),
        (["/data", "/mnt", "-N", "ns"], "-N is not supported"),
        (["/data", "/mnt", "-o", "remount"], "-o remount is not supported"),
    ],
)
def test_misuse_is_code_1(mounted: Mounts, capsys: pytest.CaptureFixture[str], arguments: list[str], what: str) -> None:
    assert mount_helper.main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("stripefs: ")
    assert what in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("usage"), 1),
        (StripefsError("any"), 32),
        (MountError("no"), 32),
        (NotFound("no"), 32),
        (OSError("system"), 2),
        (ZeroDivisionError(), 4),
        (KeyboardInterrupt(), 8),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_exit_codes_of_mount(monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int) -> None:
    def fail(settings: Settings) -> int:
        raise error

    monkeypatch.setattr(mounting, "start", fail)
    assert mount_helper.main(["/data", "/mnt", "-o", "ro"]) == code

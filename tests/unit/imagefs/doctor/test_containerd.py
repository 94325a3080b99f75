"""Findings about containerd, by its version, its configuration and its plugins."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from imagefs.doctor.services import ContainerdFacts, containerd_facts, judge_containerd, uses_snapshotter
from imagefs.snapshotter.containerd_config import (
    IMAGES_PLUGIN,
    ROOT,
    SOCKET,
    TRANSFER_PLUGIN,
    V1_CRI_PLUGIN,
    Wanted,
    containerd_config,
)

VERSIONS = [(1, 7, 27), (2, 0, 5), (2, 1, 4), (2, 3, 0)]


def config(major: int, *, runtime_class: bool = False) -> dict[str, Any]:
    return tomllib.loads(containerd_config(major, Wanted(runtime_class=runtime_class)))


def facts(version: tuple[int, int, int], config: dict[str, Any]) -> ContainerdFacts:
    return ContainerdFacts(version, config, "", {"overlayfs": "ok", "imagefs": "ok"})


def states(known: ContainerdFacts) -> dict[str, str]:
    return {one.check.removeprefix("containerd."): one.state for one in judge_containerd(known, SOCKET, ROOT)}


def against(known: ContainerdFacts) -> dict[str, str]:
    """The states that are not ok, each of which must have a cost."""
    assert [
        one for one in judge_containerd(known, SOCKET, ROOT) if one.state == "fail" and not (one.cost and one.remedy)
    ] == []
    return {name: state for name, state in states(known).items() if state != "ok"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("runtime_class", [False, True])
def test_what_is_printed_for_a_version_is_right_for_it(version: tuple[int, int, int], runtime_class: bool) -> None:
    known = facts(version, config(version[0], runtime_class=runtime_class))
    assert against(known) == {}
    assert uses_snapshotter(known.config or {})


def test_of_1_6_kubelet_finds_the_folder_only_by_a_link(tmp_path: Path) -> None:
    root = tmp_path / "snapshotter"
    root.mkdir()
    made = {**config(1), "root": str(tmp_path)}
    known = facts((1, 6, 20), made)
    link = tmp_path / "io.containerd.snapshotter.v1.imagefs"

    def room() -> tuple[str, str]:
        (found,) = [one for one in judge_containerd(known, SOCKET, str(root)) if one.check == "containerd.room"]
        return found.state, found.remedy

    assert room() == ("warn", f"ln -s {root} {link}")
    link.symlink_to(root)
    assert room() == ("ok", "")
    assert against(known._replace(version=(1, 5, 11)))["version"] == "fail"
    del made["plugins"][V1_CRI_PLUGIN]["containerd"]["disable_snapshot_annotations"]
    assert against(known)["annotations"] == "fail", "they are off unless the file says otherwise"


def test_without_containerd_there_is_one_finding() -> None:
    assert states(ContainerdFacts(None, None, "…/config.toml does not exist")) == {"version": "warn"}


def test_where_only_the_file_is_to_be_seen_it_is_judged() -> None:
    assert against(ContainerdFacts(None, config(2))) == {"version": "warn", "running": "warn"}


@pytest.mark.parametrize(
    ("change", "against_it"),
    [
        (lambda made: made["proxy_plugins"].clear(), {"plugin": "warn"}),
        (lambda made: made["proxy_plugins"]["imagefs"].update(address="/run/other.sock"), {"plugin": "fail"}),
        (lambda made: made["proxy_plugins"]["imagefs"].update(type="content"), {"plugin": "fail"}),
        (lambda made: made["proxy_plugins"]["imagefs"]["exports"].pop("root"), {"room": "warn"}),
        (
            lambda made: made["proxy_plugins"]["imagefs"]["exports"].pop("enable_remote_snapshot_annotations"),
            {"transfer": "fail"},
        ),
        (lambda made: made["plugins"].pop(TRANSFER_PLUGIN), {"transfer": "fail"}),
        (lambda made: made["plugins"][IMAGES_PLUGIN].update(snapshotter="overlayfs"), {"snapshotter": "warn"}),
        (lambda made: made["plugins"][IMAGES_PLUGIN].update(discard_unpacked_layers=True), {"layers": "warn"}),
        (
            lambda made: made["plugins"][IMAGES_PLUGIN].update(disable_snapshot_annotations=True),
            {"annotations": "fail"},
        ),
    ],
)
def test_each_thing_that_is_missing_is_found(change: Any, against_it: dict[str, str]) -> None:
    made = config(2)
    change(made)
    assert against(facts((2, 1, 4), made)) == against_it


@pytest.mark.parametrize(("version", "against_it"), [((2, 3, 9), {"rebase": "fail"}), ((2, 4, 0), {})])
def test_parallel_unpacks_want_a_containerd_that_asks_which_layers_are_lazy(
    version: tuple[int, int, int], against_it: dict[str, str]
) -> None:
    made = config(2)
    made["proxy_plugins"]["imagefs"]["capabilities"] = ["rebase"]
    assert against(facts(version, made)) == against_it


@pytest.mark.parametrize(
    ("plugins", "state"), [(None, "warn"), ({}, "fail"), ({"imagefs": "error"}, "fail"), ({"imagefs": "ok"}, "ok")]
)
def test_the_containerd_that_runs_may_have_another_configuration(plugins: dict[str, str] | None, state: str) -> None:
    assert states(facts((2, 1, 4), config(2))._replace(plugins=plugins))["running"] == state


def test_a_file_without_its_program_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "config.toml"
    assert containerd_facts(str(file)) == ContainerdFacts(None, None, f"{file} does not exist")
    file.write_text(containerd_config(2))
    assert containerd_facts(str(file)) == ContainerdFacts(None, config(2))
    file.write_text("version = ")
    assert containerd_facts(str(file)).trouble.startswith(f"{file} cannot be read: ")


@pytest.mark.parametrize("table", ["grpc", "plugins.'io.containerd.server.v1.grpc'"])
def test_what_containerd_and_ctr_print_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "dump").write_text(containerd_config(2) + f'\n[{table}]\naddress = "/dev/null"\n')
    (tmp_path / "plugins").write_text(
        "TYPE                             ID           PLATFORMS      STATUS\n"
        "io.containerd.snapshotter.v1     overlayfs    linux/amd64    ok\n"
        "io.containerd.snapshotter.v1     imagefs      -              ok\n"
    )
    scripts = {
        "containerd": f'case "$*" in --version) echo containerd x v2.1.4 y;; *dump) cat {tmp_path}/dump;; esac',
        "ctr": f'[ "$2" = /dev/null ] && cat {tmp_path}/plugins',
    }
    for name, body in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    known = containerd_facts(str(tmp_path / "none"))
    assert (known.version, known.plugins) == ((2, 1, 4), {"overlayfs": "ok", "imagefs": "ok"})
    assert against(known) == {}

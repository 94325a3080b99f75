"""The files that people copy from deploy/: manifests against Kubernetes' schemas, the Dockerfile, and the node's
installer."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import kubernetes_validate
import pytest

from imagefs.cli.common import settings_for
from imagefs.settings import default_cache, default_runtime
from imagefs.snapshotter.containerd_config import PLUGIN, ROOT, SOCKET
from tests.support.checkout import CHECKOUT
from tests.support.kubernetes_manifests import DEPLOY, MANIFESTS, containers, pod_spec

OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version()
"""Sidecars need no feature gate since 1.29."""


@pytest.fixture(scope="module", autouse=True)
def _schemas_are_read_once() -> Iterator[None]:
    """Each validation reads all definitions of a version anew, which takes more than anything else here."""
    utils = kubernetes_validate.utils
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        yield


PODS = [name for name, document in MANIFESTS.items() if document["kind"] in ("Pod", "DaemonSet")]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_one_of_kubernetes(name: str) -> None:
    for version in (OLDEST, NEWEST):
        assert kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


@pytest.mark.parametrize("name", PODS)
def test_every_volume_that_is_mounted_is_there(name: str) -> None:
    document = MANIFESTS[name]
    there = [volume["name"] for volume in pod_spec(document).get("volumes", [])]
    mounted = {mount["name"] for container in containers(document) for mount in container.get("volumeMounts", [])}
    assert mounted == set(there)


@pytest.mark.parametrize("name", PODS)
def test_only_privileged_containers_hand_mounts_on(name: str) -> None:
    for container in containers(MANIFESTS[name]):
        if any(mount.get("mountPropagation") == "Bidirectional" for mount in container.get("volumeMounts", [])):
            assert container["securityContext"]["privileged"] is True


@pytest.mark.parametrize("name", PODS)
def test_resources_are_those_that_every_node_has(name: str) -> None:
    """Kubernetes takes any other name, and finds no node for the pod then."""
    for container in containers(MANIFESTS[name]):
        for amounts in container.get("resources", {}).values():
            assert amounts.keys() <= {"cpu", "memory", "ephemeral-storage"}


@pytest.mark.parametrize("name", PODS)
def test_scripts_of_containers_are_scripts(name: str) -> None:
    for container in containers(MANIFESTS[name]):
        if container["command"] == ["sh", "-c"]:
            subprocess.run(["sh", "-n", "-c", container["args"][0]], check=True)


@pytest.mark.parametrize("name", ["imagefs-in-pod.yaml/DaemonSet", "stripefs-node.yaml/DaemonSet"])
def test_no_update_ends_a_pod_that_others_read_through(name: str) -> None:
    assert MANIFESTS[name]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    for container in containers(MANIFESTS[name]):
        assert "livenessProbe" not in container


def test_the_names_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MANIFESTS["imagefs.yaml/RuntimeClass"]["handler"] == PLUGIN
    assert MANIFESTS["pod.yaml/Pod"]["spec"]["runtimeClassName"] == PLUGIN
    in_pod = MANIFESTS["imagefs-in-pod.yaml/DaemonSet"]
    (container,) = containers(in_pod)
    seen = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod_spec(in_pod)["volumes"]}
    assert {name: seen[name] for name in paths if paths[name]} == {name: path for name, path in paths.items() if path}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert seen["run"] == default_runtime({}) == os.path.dirname(SOCKET)
    assert default_cache({}).startswith(seen["cache"])
    assert ROOT.startswith(seen["lib"])


def test_the_settings_are_settings(tmp_path: Path) -> None:
    (text,) = MANIFESTS["imagefs.yaml/ConfigMap"]["data"].values()
    (tmp_path / "imagefs.toml").write_text(text)
    settings = settings_for(click.Context(click.Command("daemon")), config=str(tmp_path / "imagefs.toml"))
    document = tomllib.loads(text)
    assert settings.daemon.cache_size == 200 << 30
    assert settings.daemon.metrics == document["daemon"]["metrics"]
    assert list(settings.snapshotter.stores) == document["snapshotter"]["stores"]


@pytest.mark.parametrize("page", ["kubernetes.md", "containerd.md"])
def test_what_the_symptoms_quote_is_what_the_programs_say(page: str) -> None:
    _, _, table = (CHECKOUT / "docs" / page).read_text().partition("## Troubleshooting by symptom\n")
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| ")][1:]
    said = [part.strip() for row in rows for part in re.findall(r"``(.+?)``|`([^`]+)`", row) for part in part if part]
    sources = [path.read_text() for folder in ("imagefs", "stripefs") for path in (CHECKOUT / folder).rglob("*.py")]
    sources.append((DEPLOY / "node-install").read_text())
    messages = [one for one in said if " " in one and "…" not in one and "`close`" not in one]
    assert len(messages) >= 6
    assert [one for one in messages if not any(one in source for source in sources)] == []


# -- the image ---------------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """Keyword and the rest of each instruction of the Dockerfile, lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines if line.strip()]


def test_the_image_is_made_of_what_is_here_and_of_what_is_pinned() -> None:
    found = instructions()
    assert found[0] == ("ARG", "BASE=debian:12-slim")
    assert [rest.split()[0] for word, rest in found if word == "FROM"] == ["${BASE}", "${BASE}"]
    for word, rest in found:
        if word == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (CHECKOUT / source).exists(), source
        for command in re.findall(r"pip (?:install|wheel) [^&]*", rest):
            assert "--require-hashes" in command or "--no-deps" in command
            for lock in re.findall(r"-r /src/(\S+)", command):
                assert "--hash=sha256:" in (CHECKOUT / lock).read_text()


# -- the installer -----------------------------------------------------------------------------------------------------


class Node:
    """A node whose process 1 is reached by a stand-in for nsenter, and whose systemd writes down what it is told."""

    def __init__(self, folder: Path) -> None:
        self.host, self.config, self.programs, self.said = (folder / name for name in ("host", "config", "bin", "said"))
        for made in (self.host, self.config, self.programs):
            made.mkdir()
        self._program("nsenter", 'while [ "$1" != -- ]; do shift; done; shift; PATH="$NODE:$PATH"; exec "$@"')
        self.systemd(True)
        self._program("systemctl", f'echo "$@" >>{self.said}')

    def _program(self, name: str, script: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def systemd(self, runs: bool) -> None:
        self._program("test", "true" if runs else "false")

    def release(self, name: str, folder: Path, outcome: str) -> Path:
        """A tree of the image, whose `imagefs install` ends with this."""
        prefix = folder / "image" / name
        (prefix / "bin").mkdir(parents=True)
        program = prefix / "bin/imagefs"
        program.write_text(
            f'#!/bin/sh\necho "imagefs $*" >>{self.said}\n[ "$1" != install ] || echo "unit: {outcome}"\n'
        )
        program.chmod(0o755)
        return prefix

    def install(self, prefix: Path, *arguments: str) -> tuple[int, str]:
        """Exit code of node-install and what it said; what systemd and imagefs were told is in `told`."""
        self.said.write_text("")
        environment = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "NODE": str(self.programs),
            "BOOTSEER": str(prefix),
            "HOST": str(self.host),
            "CONFIG": str(self.config),
            "ONCE": "1",
        }
        done = subprocess.run(
            ["sh", str(DEPLOY / "node-install"), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stderr

    @property
    def told(self) -> list[str]:
        return self.said.read_text().splitlines()


RESTART = "restart imagefs.service imagefs-snapshotter.service"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_node_gets_the_release_and_its_services(node: Node, tmp_path: Path) -> None:
    prefix = node.release("1", tmp_path, "written")
    (node.config / "imagefs.toml").write_text("version = 1\n")
    (node.config / "data.env").write_text("SOURCE=hdfs://namenode/data\n")
    assert node.install(prefix)[0] == 0
    assert (node.host / "etc/bootseer/imagefs.toml").read_text() == "version = 1\n"
    assert (node.host / "etc/bootseer/mounts/data.env").read_text() == "SOURCE=hdfs://namenode/data\n"
    assert os.access(f"{node.host}{prefix}/bin/imagefs", os.X_OK)
    assert node.told == ["imagefs install --enable", RESTART, "enable --now stripefs@data.service", "imagefs doctor"]


def test_what_is_as_it_should_be_is_left_alone(node: Node, tmp_path: Path) -> None:
    (node.config / "imagefs.toml").write_text("version = 1\n")
    node.install(node.release("1", tmp_path, "written"))
    program = tmp_path / "image/1/bin/imagefs"
    program.write_text(program.read_text().replace("written", "unchanged"))
    inode = os.stat(f"{node.host}{program}").st_ino
    code, said = node.install(tmp_path / "image/1")
    assert (code, said) == (0, "")
    assert node.told == ["imagefs install --enable", "imagefs doctor"]
    assert os.stat(f"{node.host}{program}").st_ino == inode
    (node.config / "imagefs.toml").write_text("version = 1\n[daemon]\n")
    node.install(tmp_path / "image/1")
    assert RESTART in node.told


def test_a_release_stays_as_long_as_a_process_runs_from_it(node: Node, tmp_path: Path) -> None:
    node.install(node.release("1", tmp_path, "written"))
    old = tmp_path / "image/1/bin/busy"
    shutil.copy("/bin/sleep", old)
    with subprocess.Popen([old, "1000"]) as running:
        try:
            node.install(node.release("2", tmp_path, "updated"))
            assert RESTART in node.told
            assert sorted(os.listdir(f"{node.host}{tmp_path}/image")) == ["1", "2"]
        finally:
            running.kill()
    node.install(tmp_path / "image/2")
    assert os.listdir(f"{node.host}{tmp_path}/image") == ["2"]


def test_a_node_without_systemd_is_refused_before_anything_changes(node: Node, tmp_path: Path) -> None:
    node.systemd(False)
    code, said = node.install(node.release("1", tmp_path, "written"))
    assert (code, said.count("\n")) == (1, 1)
    assert "the node does not run systemd; kubernetes/imagefs-in-pod.yaml" in said
    assert list(node.host.iterdir()) == []
    assert node.told == []


def test_a_removal_that_is_refused_leaves_the_release(node: Node, tmp_path: Path) -> None:
    prefix = node.release("1", tmp_path, "written")
    node.install(prefix)
    program = prefix / "bin/imagefs"
    works = program.read_text()
    program.write_text(works + "exit 2\n")  # containers use it
    assert node.install(prefix, "--remove")[0] == 2
    assert os.path.exists(f"{node.host}{program}")
    program.write_text(works)
    assert node.install(prefix, "--remove")[0] == 0
    assert node.told == ["imagefs install --remove"]
    assert not os.path.exists(f"{node.host}{program}")


def test_the_probe_asks_for_both_services(node: Node, tmp_path: Path) -> None:
    assert node.install(node.release("1", tmp_path, "written"), "--check")[0] == 0
    assert node.told == ["is-active --quiet imagefs.service imagefs-snapshotter.service"]

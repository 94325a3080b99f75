"""`imagefs doctor` on this machine: the kernel is tried, nothing stays, and the daemon that runs is found."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from imagefs.doctor.host import TRIALS
from tests.support.images.faults import mounts_below
from tests.tools.imagefs_daemon import Service, eventually
from tests.tools.registry import running_registry

pytestmark = [pytest.mark.mount, pytest.mark.root]


def examined(service: Service, *arguments: str) -> dict[str, tuple[str, str]]:
    """State and what was found, by check; containerd's own configuration is left out."""
    done = service.run("doctor", "--json", "--containerd-config", str(service.folder / "none"), *arguments)
    findings = json.loads(done.stdout)["findings"]
    assert done.returncode == any(one["state"] == "fail" for one in findings)
    return {one["check"]: (one["state"], one["found"]) for one in findings}


def test_the_kernel_is_tried_and_nothing_stays(service: Service) -> None:
    found = examined(service)
    tried = {f"kernel.{name}" for name in TRIALS if name != "erofs-loop"}  # which is there for older kernels
    assert {name: found[name][0] for name in tried} == dict.fromkeys(tried, "ok")
    assert found["daemon.running"][0] == "warn"
    assert "fail" not in {state for state, _ in found.values()}
    assert os.listdir(service.settings.cache) == []
    assert mounts_below(service) == []


def test_the_daemon_that_runs_is_found(service: Service) -> None:
    service.start("daemon")
    eventually(service.answers, "the daemon")
    found = examined(service)
    assert (found["daemon.running"][0], found["daemon.version"][0]) == ("ok", "ok")
    assert "daemon.namespace" not in found
    service.stop()  # killed, it would leave what it serves to its keeper


def registry_findings(service: Service, url: str, *arguments: str) -> dict[str, tuple[str, str]]:
    found = examined(service, *arguments, url)
    return {name: one for name, one in found.items() if name.startswith(("registry", "store"))}


def test_a_registry_is_examined_with_the_credentials_that_are_there(service: Service, tmp_path: Path) -> None:
    with running_registry(tmp_path / "registry", htpasswd=True) as address:
        authfile = tmp_path / "auth.json"
        url = f"oci://{address}/images?scheme=http&authfile={authfile}"
        found = registry_findings(service, url)
        assert {name: state for name, (state, _) in found.items()} == {
            "registry.credentials": "ok",
            "registry.read": "fail",
        }
        assert "there are no credentials" in found["registry.credentials"][1]

        authfile.write_text(json.dumps({"credHelpers": {address: "absent"}}))
        state, told = registry_findings(service, url)["registry.credentials"]
        assert (state, f"{authfile} names docker-credential-absent" in told) == ("warn", True)

        known = base64.b64encode(b"ann:secret").decode()
        authfile.write_text(json.dumps({"auths": {address: {"auth": known}}}))
        found = registry_findings(service, url)
        names = ("registry.credentials", "registry.read", "registry.write", "registry.clock")
        assert {name: state for name, (state, _) in found.items()} == dict.fromkeys(names, "ok")
        assert "no such repository yet" in found["registry.read"][1]
        assert not list((tmp_path / "registry").rglob("_uploads/*/data"))  # the upload was cancelled
        assert "registry.write" not in registry_findings(service, url, "--no-write")


def test_stores_that_the_configuration_names_are_examined_unasked(service: Service, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    config = tmp_path / "imagefs.toml"
    config.write_text(f'version = 1\n[snapshotter]\nstores = ["{tmp_path}/store"]\n[deps]\nstore = "{tmp_path}/none"\n')
    found = examined(service, "--config", str(config))
    assert (found["store.read"][0], found["store.reach"][0]) == ("ok", "fail")

"""Registries that refuse, want tokens, send readers elsewhere, or answer what is broken."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from imagefs.errors import DamagedObject, NoSuchImage
from imagefs.repository import registry_objects
from imagefs.repository.artifact import image_tag
from imagefs.repository.images import object_path
from stripefs.errors import PermissionDenied, StoreError, Transient
from tests.integration.store.http.opening import certify
from tests.support.images.stores import build_tree, images_at, images_in, write_tree
from tests.tools.broken_registry import PASSWORD, BrokenRegistry, Fault, broken
from tests.tools.imagefs_daemon import Service
from tests.tools.registry import running_registry
from tests.unit.imagefs.cli.conftest import Command

DATA = random.Random(5).randbytes(300_000)
DIGEST = hashlib.sha256(DATA).hexdigest()
PACK = object_path("packs", DIGEST)
SOURCE = "sha256:" + "5a" * 32


@pytest.fixture
def proxy(registry: str) -> Iterator[BrokenRegistry]:
    with broken(registry) as made:
        yield made


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "docker").mkdir()


@pytest.fixture
def url(proxy: BrokenRegistry, request: pytest.FixtureRequest) -> str:
    """A repository of this test's own."""
    return f"oci://{proxy.address}/t{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}?scheme=http"


@pytest.fixture
def authfile(proxy: BrokenRegistry, tmp_path: Path) -> Path:
    log_in(tmp_path / "auth.json", proxy.address)
    return tmp_path / "auth.json"


def log_in(file: Path, host: str, secret: str = "secret") -> None:
    auth = base64.b64encode(f"ann:{secret}".encode()).decode()
    file.write_text(json.dumps({"auths": {host: {"auth": auth}}}))


# -- credentials ---------------------------------------------------------------------------------------------------


def test_wrong_credentials_are_one_line(tmp_path: Path, imagefs: Command) -> None:
    config = tmp_path / "docker/config.json"
    with running_registry(tmp_path / "registry", htpasswd=True) as address:
        build_tree(write_tree(tmp_path / "source", a=1), images_in(tmp_path / "store"), "app")
        place = f"oci://{address}/app?scheme=http"
        for secret in ("", "wrong"):
            if secret:
                log_in(config, address, secret)
            for arguments in (["ls", place], ["push", f"{tmp_path}/store#app", place]):
                code, _, err = imagefs.run(*arguments)
                assert (code, err.count("\n")) == (3, 1)
                assert f"{address} does not let us" in err
                assert "docker login" in err
        log_in(config, address)
        imagefs("push", f"{tmp_path}/store#app", place, "--quiet")
        assert "app" in imagefs("ls", place)


@pytest.mark.parametrize("kind", ["credHelpers", "credsStore"])
def test_a_credential_helper(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker-credential-vault"
    program.write_text('#!/bin/sh\ncat >/dev/null\necho \'{"Username": "ann", "Secret": "secret"}\'\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with running_registry(tmp_path / "registry", htpasswd=True) as address:
        config = {"credHelpers": {address: "vault"}} if kind == "credHelpers" else {"credsStore": "vault"}
        (tmp_path / "docker/config.json").write_text(json.dumps(config))
        with images_at(f"oci://{address}/app?scheme=http") as images:
            images.repository.put(PACK, DATA)
            assert images.repository.read(PACK) == DATA


def test_tokens_that_end_are_asked_for_again(proxy: BrokenRegistry, url: str, authfile: Path) -> None:
    """As during a long run: each token serves for four requests. Credentials that changed meanwhile are found."""
    proxy.token_uses = 4
    with images_at(f"{url}&authfile={authfile}") as images:
        images.repository.put(PACK, DATA)
        reader = images.repository.open(PACK, len(DATA))
        for offset in range(0, len(DATA), 10_000):
            assert reader.read(offset, 10_000) == DATA[offset : offset + 10_000]
        assert len(proxy.tokens) >= 8
        assert all(given == PASSWORD for _, given in proxy.tokens)
        log_in(authfile, proxy.address, "expired")
        with pytest.raises(PermissionDenied):
            [reader.read(0, 10) for _ in range(5)]
        log_in(authfile, proxy.address)
        assert reader.read(0, 10) == DATA[:10]


def test_a_blob_is_linked_with_a_token_for_both_repositories(proxy: BrokenRegistry, url: str, authfile: Path) -> None:
    proxy.token_uses = 1000
    first = f"{url}&authfile={authfile}"
    with images_at(first) as here, images_at(first.replace("?", "-second?")) as there:
        here.repository.put(PACK, DATA)
        there.repository.put(object_path("packs", hashlib.sha256(b"other").hexdigest()), b"other")
        assert there.repository.link(PACK, here.repository)
        name = first.partition("?")[0].rpartition("/")[2]
        scopes = parse_qs(urlsplit(proxy.tokens[-1][0]).query)["scope"]
        assert sorted(scopes) == [f"repository:{name}-second:delete,pull,push", f"repository:{name}:pull"]
        assert there.repository.read(PACK) == DATA


def test_credentials_are_not_sent_where_a_blob_lies(
    proxy: BrokenRegistry, registry: str, url: str, authfile: Path
) -> None:
    proxy.token_uses = 1000
    with broken(registry) as elsewhere, images_at(f"{url}&authfile={authfile}") as images:
        images.repository.put(PACK, DATA)
        path = f"/v2/{url.partition('?')[0].rpartition('/')[2]}/blobs/sha256:{DIGEST}"
        proxy.faults.append(Fault("/blobs/", "redirect", text=f"http://{elsewhere.address}{path}"))
        reader = images.repository.open(PACK, len(DATA))
        for offset in (0, 100_000):
            assert reader.read(offset, 50_000) == DATA[offset : offset + 50_000]
        assert images.repository.read(PACK) == DATA
        assert elsewhere.seen == ["", "", ""]
        assert [path for path, _ in proxy.asked].count(path) == 2, "the place is kept for the next range"


# -- http and https ------------------------------------------------------------------------------------------------


def test_a_certificate_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imagefs: Command) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    tls = certify(tmp_path)
    with running_registry(tmp_path / "registry", tls=tls) as address:
        code, _, err = imagefs.run("ls", f"oci://{address}/app")
        assert (code, err.count("\n"), "?ca-file=FILE" in err) == (3, 1, True)
        with images_at(f"oci://{address}/app?ca-file={tls[0]}") as images:
            images.repository.put(PACK, DATA)
            assert images.repository.read(PACK) == DATA


def test_plain_http_is_spoken_only_where_that_was_asked_for(proxy: BrokenRegistry, imagefs: Command) -> None:
    code, _, err = imagefs.run("ls", f"oci://{proxy.address}/app")
    assert (code, err.count("\n"), "?scheme=http" in err) == (3, 1, True)
    assert (proxy.asked, proxy.seen) == ([], [])


# -- broken answers ------------------------------------------------------------------------------------------------


def test_a_registry_that_breaks_off_is_asked_again(proxy: BrokenRegistry, url: str, tmp_path: Path) -> None:
    with images_at(url, patience=30.0) as images:
        digest = build_tree(write_tree(tmp_path / "source", a=1), images, "app").digest
        faults = [Fault("/manifests/app", "drop", 20), Fault("/manifests/app", "busy"), Fault("/blobs/", "drop", 20)]
        proxy.faults += faults
        assert images.resolve("app") == digest
        assert images.manifest(digest).devices
        assert proxy.faults == []


@pytest.mark.parametrize("text", ["<html>", '{"config": 5}'])
def test_a_manifest_that_is_damaged(text: str, proxy: BrokenRegistry, url: str, tmp_path: Path) -> None:
    with images_at(url) as images:
        digest = build_tree(write_tree(tmp_path / "source", a=1), images, "app").digest
        for tag in ("app", image_tag(digest)):
            proxy.faults.append(Fault(f"/manifests/{tag}", "answer", 200, text))
        with pytest.raises(DamagedObject, match="is no "):
            images.resolve("app")
        with pytest.raises(DamagedObject, match="is no "):
            images.manifest(digest)


def test_other_bytes_than_a_digest_says(proxy: BrokenRegistry, url: str, tmp_path: Path) -> None:
    with images_at(url) as images:
        digest = build_tree(write_tree(tmp_path / "source", a=1), images, "app").digest
        proxy.faults.append(Fault(f"/blobs/sha256:{digest}", "spoil", 30))
        with pytest.raises(DamagedObject, match="other bytes"):
            images.manifest(digest)
        images.repository.put(PACK, DATA)
        reader = images.repository.open(PACK, len(DATA))
        proxy.faults.append(Fault(f"/blobs/sha256:{DIGEST}", "no-ranges"))
        with pytest.raises(StoreError, match="a part was asked for"):
            reader.read(5, 10)
        proxy.faults.append(Fault(f"/blobs/sha256:{DIGEST}", "drop", 5))
        with pytest.raises(Transient):
            reader.read(5, 10)


@pytest.mark.mount
@pytest.mark.root
def test_a_pack_that_is_missing(registry: str, tmp_path: Path, service: Service) -> None:
    url = f"oci://{registry}/lacking?scheme=http"
    with images_at(url) as images:
        digest = build_tree(write_tree(tmp_path / "source", a=7), images, "app").digest
        (pack,) = images.index(images.manifest(digest).devices[0].index).packs
        images.repository.remove(object_path("packs", pack.digest.hex()))
    checked = service.run("verify", url, "--json")
    assert checked.returncode == 5
    (damage,) = json.loads(checked.stdout)["damage"]
    assert (pack.digest.hex() in damage["path"], damage["images"]) == (True, [digest])
    done = service.run("pull", url.replace("?", ":app?"), str(tmp_path / "copy"))
    assert done.returncode == 5
    assert f"lacks packs/{pack.digest.hex()}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert images_in(tmp_path / "copy").images() == {}
    target = service.mountpoint()
    service.ok("mount", url.replace("?", ":app?"), str(target))
    assert (target / "small").read_text() == "kept in the metadata"
    with pytest.raises(OSError, match="Input/output error"):
        (target / "a.bin").read_bytes()
    service.ok("umount", str(target))


# -- lookups of a snapshotter --------------------------------------------------------------------------------------


def test_a_brief_lookup_asks_once(proxy: BrokenRegistry, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_objects, "_lacking", {})

    def asked(repository: str = url) -> list[str]:
        proxy.asked.clear()
        with images_at(f"{repository}&lookup=brief") as images, pytest.raises(NoSuchImage):
            images.by_source(SOURCE)
        return [path.partition("?")[0].rpartition("/")[2] for path, _ in proxy.asked]

    empty = json.dumps({"schemaVersion": 2, "manifests": []})
    proxy.faults.append(Fault("/referrers/", "answer", 200, empty))
    assert asked() == [SOURCE], "a registry that knows referrers"
    fallback = SOURCE.replace(":", "-")
    another = url.replace("?", "-another?")
    assert [asked(), asked(another)] == [[SOURCE, fallback], [fallback]], "one that does not is asked for them once"
    proxy.asked.clear()
    proxy.faults.append(Fault("/referrers/", "answer", 200, empty))
    with images_at(url) as images, pytest.raises(NoSuchImage):
        images.by_source(SOURCE)
    assert len(proxy.asked) == 2, "a store has images of container images that lie elsewhere too"

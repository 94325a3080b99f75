"""Distributions: their files against RECORD, their requirements on one another, and findings in whole trees."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import struct
from pathlib import Path
from typing import Any

import pytest

from imagefs.deps.check.distributions import (
    Described,
    Owned,
    check_consistent,
    check_records,
    describe,
    describe_site,
)
from imagefs.deps.check.rules import Finding, distributions_in, find_sites, judge
from imagefs.deps.check.tree import Installation, check_tree
from imagefs.deps.inventory import take

SITE = "lib/python3.11/site-packages"


def row(path: str, data: bytes, algorithm: str = "sha256") -> str:
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
    return f"{path},{algorithm}={digest},{len(data)}"


def put(top: Path, path: str, data: bytes = b"") -> None:
    (top / path).parent.mkdir(parents=True, exist_ok=True)
    (top / path).write_bytes(data)


def record(top: Path, *rows: str, name: str = "alpha", site: str = SITE) -> None:
    info = f"{name}-1.0.dist-info"
    put(top, f"{site}/{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]).encode())


def check(top: Path, at: str = "/opt/env") -> tuple[Owned, list[Finding]]:
    inventory = take(str(top))
    sites = find_sites(inventory.entries)
    found = [one for site in sites for one in distributions_in(inventory.entries, site)]
    return check_records(inventory, found, at)


def problems(top: Path, at: str = "/opt/env") -> dict[str, str]:
    return {one.subject: one.what for one in check(top, at)[1]}


def test_all_is_as_it_says(tmp_path: Path) -> None:
    put(tmp_path, f"{SITE}/alpha/__init__.py", b"x = 1\n")
    put(tmp_path, "bin/alpha", b"#!/usr/bin/python3\n")
    put(tmp_path, "share/alpha/one,two", b"data")
    os.symlink("lib", tmp_path / "lib64")
    record(
        tmp_path,
        row("../../../lib64/python3.11/site-packages/alpha/__init__.py", b"x = 1\n"),
        row("../../../bin/alpha", b"#!/usr/bin/python3\n", "sha512"),
        row('"/opt/env/share/alpha/one,two"', b"data"),
    )
    owned, findings = check(tmp_path)
    assert findings == []
    info = f"{SITE}/alpha-1.0.dist-info/RECORD"
    assert owned.names == owned.verified == {f"{SITE}/alpha/__init__.py", "bin/alpha", "share/alpha/one,two", info}


def test_what_is_missing_or_another(tmp_path: Path) -> None:
    put(tmp_path, f"{SITE}/same_size.py", b"x = 2\n")
    put(tmp_path, f"{SITE}/longer.py", b"x = 1\n\n")
    put(tmp_path, f"{SITE}/weak.py", b"")
    put(tmp_path, f"{SITE}/undigested.py", b"")
    (tmp_path / SITE / "folder.py").mkdir()
    os.symlink("/etc/passwd", tmp_path / SITE / "link.py")
    record(
        tmp_path,
        *(row(name, b"x = 1\n") for name in ("same_size.py", "longer.py", "missing.py", "folder.py", "link.py")),
        row("weak.py", b"", "md5"),
        "undigested.py,,",
        row("../../../../outside", b""),
    )
    found = problems(tmp_path)
    assert found == {
        f"{SITE}/same_size.py": "has another digest",
        f"{SITE}/longer.py": "has 7 bytes, not 6",
        "alpha 1.0: missing.py": "is missing",
        "alpha 1.0: ../../../../outside": "is missing",
        f"{SITE}/folder.py": "is not a regular file",
        f"{SITE}/link.py": "is a link, and not the file itself",
        f"{SITE}/weak.py": "has a digest of the kind md5, which proves nothing",
        f"{SITE}/undigested.py": "has no digest",
    }
    assert check(tmp_path)[0].verified == {f"{SITE}/alpha-1.0.dist-info/RECORD"}


def test_bytecode_may_be_there_or_not(tmp_path: Path) -> None:
    put(tmp_path, f"{SITE}/a.py")
    put(tmp_path, f"{SITE}/__pycache__/a.cpython-311.pyc", b"ours")
    rows = [row("__pycache__/a.cpython-311.pyc", b"theirs"), "__pycache__/b.cpython-311.pyc,,"]
    record(tmp_path, row("a.py", b""), *rows)
    owned, findings = check(tmp_path)
    assert findings == []
    assert f"{SITE}/__pycache__/a.cpython-311.pyc" in owned.names


def test_bytecode_in_place_of_a_source_is_looked_at(tmp_path: Path) -> None:
    put(tmp_path, f"{SITE}/a.pyc", b"ours")
    record(tmp_path, row("a.pyc", b"them"), row("b.pyc", b""))
    assert problems(tmp_path) == {f"{SITE}/a.pyc": "has another digest", "alpha 1.0: b.pyc": "is missing"}


def test_a_link_does_not_lead_out_of_the_tree(tmp_path: Path) -> None:
    top = tmp_path / "top"
    put(tmp_path, "elsewhere/a.py")
    put(top, f"{SITE}/b.py")
    os.symlink(tmp_path / "elsewhere", top / SITE / "linked")
    record(top, row("linked/a.py", b""), row("b.py", b""))
    assert problems(top) == {"alpha 1.0: linked/a.py": "is missing"}


def test_packages_that_overwrite_one_another(tmp_path: Path) -> None:
    put(tmp_path, f"{SITE}/shared.py", b"of beta")
    record(tmp_path, row("shared.py", b"of alpha"))
    assert problems(tmp_path) == {f"{SITE}/shared.py": "has 7 bytes, not 8"}
    record(tmp_path, row("shared.py", b"of beta"), name="beta")
    assert problems(tmp_path) == {}


def test_distributions_that_cannot_be_judged(tmp_path: Path) -> None:
    put(tmp_path, f"{SITE}/half-1.0.dist-info/METADATA")
    put(tmp_path, f"{SITE}/old-1.0.egg-info/PKG-INFO")
    put(tmp_path, f"{SITE}/binary-1.0.dist-info/RECORD", b"\xff\xfe")
    put(tmp_path, f"{SITE}/strange-1.0.dist-info/RECORD", b"a.py,sha256=0,x\n")
    found = problems(tmp_path)
    assert found.pop("binary 1.0").startswith("its RECORD cannot be read: ")
    assert found.pop("strange 1.0").startswith("a.py: ")
    assert found == {
        "half 1.0": "has no RECORD: its installation has not ended",
        "old 1.0": "was installed without a RECORD, by a setuptools of old",
    }


HERE = {"python_version": "3.11", "sys_platform": "linux"}


def unmet(*requires: str, beside: tuple[Described, ...] = (), **versions: str) -> list[str]:
    own = [Described("app", "1.0", requires), *(Described(name, version, ()) for name, version in versions.items())]
    return [one.what for one in check_consistent(own, beside, HERE)]


def test_met_and_unmet() -> None:
    assert unmet("numpy>=2", "Py_YAML==6.0", numpy="2.1", **{"py.yaml": "6.0"}) == []
    assert unmet("numpy>=2.1", numpy="2.1rc1+local") == ["requires numpy>=2.1, and 2.1rc1+local is installed"]
    assert unmet("numpy>=2.0", numpy="2.1rc1") == []
    assert unmet("numpy", "torch<2; python_version > '3.8'", torch="2.1") == [
        "requires numpy, which is not installed",
        "requires torch<2, and 2.1 is installed",
    ]
    assert unmet("odd", odd="2004d-final") == []
    assert unmet("odd>1", odd="2004d-final") == ["requires odd>1, and 2004d-final is installed"]


def test_for_others() -> None:
    assert unmet("pywin32; sys_platform == 'win32'", "pytest; extra == 'test'", "tomli; python_version < '3.11'") == []
    (line,) = unmet("numpy >== 2")
    assert line.startswith("requires 'numpy >== 2', which cannot be understood")


def test_what_else_the_interpreter_finds() -> None:
    beside = (Described("numpy", "1.0", ()), Described("broken", "1.0", ("missing",)))
    assert unmet("numpy", beside=beside) == []
    assert unmet("numpy>=2", beside=beside, numpy="2.0") == []
    assert unmet("numpy<2", beside=beside, numpy="2.0") == ["requires numpy<2, and 2.0 is installed"]


def test_metadata(tmp_path: Path) -> None:
    text = b"Metadata-Version: 2.1\nName: A.b\nVersion: 1\nRequires-Dist: x\nRequires-Dist: y>2\n\nRequires-Dist: no\n"
    assert describe(text) == Described("A.b", "1", ("x", "y>2"))
    (tmp_path / "a_b-1.dist-info").mkdir()
    (tmp_path / "a_b-1.dist-info" / "METADATA").write_bytes(text)
    (tmp_path / "c-1.egg-info").mkdir()
    (tmp_path / "c-1.egg-info" / "PKG-INFO").write_bytes(b"Name: c\nVersion: 2\n")
    (tmp_path / "empty.dist-info").mkdir()
    (tmp_path / "single-1.egg-info").write_text("")
    assert [one.name for one in describe_site(str(tmp_path))] == ["A.b", "c"]
    assert describe_site(str(tmp_path / "absent")) == []


def tree_findings(top: Path, **more: Any) -> list[Finding]:
    known = Installation("/opt/env", HERE, [""])
    return list(check_tree(take(str(top)), known._replace(**more)).items)


def test_what_the_interpreter_has_besides(tmp_path: Path) -> None:
    """A virtual environment sees it only where its settings say so."""
    top, beside, text = tmp_path / "env", tmp_path / "beside", b"Name: alpha\nVersion: 1.0\nRequires-Dist: beta\n"
    put(beside, "beta-1.dist-info/METADATA", b"Name: beta\nVersion: 1\n")
    put(top, f"{SITE}/alpha-1.0.dist-info/METADATA", text)
    record(top, row("alpha-1.0.dist-info/METADATA", text))
    conflict = Finding("conflict", "alpha 1.0", "requires beta, which is not installed")
    assert tree_findings(top) == [conflict]
    assert tree_findings(top, tolerant=True) == [conflict._replace(kind="unmet")]
    assert tree_findings(top, beside=[str(beside)]) == []
    put(top, "pyvenv.cfg", b"home = /usr\ninclude-system-site-packages = false\n")
    assert tree_findings(top, beside=[str(beside)]) == [conflict]
    put(top, "pyvenv.cfg", b"home = /usr\ninclude-system-site-packages = true\n")
    assert tree_findings(top, beside=[str(beside)]) == []


def test_an_editable_install(tmp_path: Path) -> None:
    told = b'{"url": "file:///my%20source", "dir_info": {"editable": true}}'
    put(tmp_path, f"{SITE}/alpha-1.0.dist-info/direct_url.json", told)
    record(tmp_path)
    assert tree_findings(tmp_path) == [Finding("editable", "alpha 1.0", "its modules are in /my source")]
    assert tree_findings(tmp_path, checked=True) == []


@pytest.mark.root
def test_programs_that_give_privileges(tmp_path: Path) -> None:
    tmp_path.chmod(0o2755)  # which gives none
    for name, mode in (("plain", 0o755), ("setuid", 0o4755), ("setgid", 0o2755), ("locked", 0o2644), ("able", 0o755)):
        put(tmp_path, f"share/{name}")
        (tmp_path / "share" / name).chmod(mode)
    os.setxattr(tmp_path / "share/able", "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))
    os.mknod(tmp_path / "share/disk", stat.S_IFBLK | 0o600, os.makedev(7, 0))
    os.mknod(tmp_path / "share/whiteout", stat.S_IFCHR, os.makedev(0, 0))
    found = [one for one in tree_findings(tmp_path) if one.kind == "privileged"]
    assert [(one.subject, one.what) for one in found] == [
        ("share/able", "with capabilities"),
        ("share/disk", "a device"),
        ("share/setgid", "setgid"),
        ("share/setuid", "setuid"),
    ]
    assert "--allow-setuid publishes them" in judge(found).lines[0]
    assert [one for one in tree_findings(tmp_path, setuid=True) if one.kind == "privileged"] == []

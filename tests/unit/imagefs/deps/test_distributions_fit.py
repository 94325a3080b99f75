"""Requirements of distributions on one another."""

from __future__ import annotations

from pathlib import Path

from imagefs.deps.check.distributions import Described, check_consistent, describe, describe_site

HERE = {
    "implementation_name": "cpython",
    "implementation_version": "3.11.7",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_release": "6.1",
    "platform_system": "Linux",
    "platform_version": "1",
    "python_full_version": "3.11.7",
    "python_version": "3.11",
    "sys_platform": "linux",
}


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


def test_what_else_the_interpreter_finds() -> None:
    beside = (Described("numpy", "1.0", ()), Described("broken", "1.0", ("missing",)))
    assert unmet("numpy", beside=beside) == []
    assert unmet("numpy>=2", beside=beside, numpy="2.0") == []
    assert unmet("numpy<2", beside=beside, numpy="2.0") == ["requires numpy<2, and 2.0 is installed"]


def test_what_cannot_be_understood_is_told() -> None:
    (line,) = unmet("numpy >== 2")
    assert line.startswith("requires 'numpy >== 2', which cannot be understood")


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

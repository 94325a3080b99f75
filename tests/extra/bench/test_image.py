"""`bench image` without a container: recipes, ratios, stand-ins for CUDA, changed files, what prepares a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.harness import BenchError
from bench.harness.host import host
from bench.harness.results import Ratio, Samples, sum_up
from bench.harness.sizes import digests, lz4_of_new
from bench.image import recipe, runtime, stubs
from bench.image.plan import Sizes, derive, ratios
from tests.tools.imagefs_daemon import built

WHEELS = Path(recipe.__file__).with_name("wheels.txt")


@pytest.mark.parametrize("one", recipe.RECIPES.values(), ids=lambda one: one.name)
def test_the_second_build_differs_by_one_patch_upgrade(one: recipe.Recipe) -> None:
    first, second = one.layers(1), one.layers(2)
    changed = [(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True) if a != b]
    ((before, after),) = changed
    assert before.rpartition(".")[0] == after.rpartition(".")[0]
    assert int(after.rpartition(".")[2]) == int(before.rpartition(".")[2]) + 1


def test_every_wheel_is_pinned_by_digest() -> None:
    known = recipe.pins(WHEELS.read_text())
    for one in recipe.RECIPES.values():
        for build in recipe.BUILDS:
            for layer in one.layers(build):
                assert all(" --hash=sha256:" in known[pin] for pin in layer)


def test_a_tag_changes_with_what_the_image_is_made_from() -> None:
    one = recipe.RECIPES["standard"]
    tags = [
        recipe.reference(one, 1, {"start.py": "a"}),
        recipe.reference(one, 1, {"start.py": "b"}),
        recipe.reference(one, 2, {"start.py": "a"}),
        recipe.reference(recipe.RECIPES["quick"], 1, {"start.py": "a"}),
    ]
    assert len({tag.rpartition("-")[2] for tag in tags}) == 4
    assert tags[0] == recipe.reference(one, 1, {"start.py": "a"})


READELF = """
Dynamic section at offset 0x2d98 contains 30 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libcudart.so.13]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000e (SONAME)             Library soname: [libtorch_cuda.so]

Symbol table '.dynsym' contains 6 entries:
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     0: 0000000000000000     0 NOTYPE  LOCAL  DEFAULT  UND
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND cudaMalloc@libcudart.so.13 (4)
     2: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND ncclSend
     3: 0000000000000000     0 FUNC    WEAK   DEFAULT  UND __cxa_finalize@GLIBC_2.2.5 (2)
     4: 0000000000001139    19 FUNC    GLOBAL DEFAULT   12 cuda_of_its_own

Version needs section '.gnu.version_r' contains 2 entries:
 Addr: 0x0000000000000520  Offset: 0x000520  Link: 7 (.dynstr)
  000000: Version: 1  File: libcudart.so.13  Cnt: 1
  0x0010:   Name: libcudart.so.13  Flags: none  Version: 4
  0x0020: Version: 1  File: libc.so.6  Cnt: 1
  0x0030:   Name: GLIBC_2.2.5  Flags: none  Version: 2
"""


def test_what_a_library_wants_is_read_from_readelf() -> None:
    wanted = stubs.parse(READELF.splitlines())
    assert wanted.needed == {"libcudart.so.13", "libc.so.6"}
    assert wanted.versions == {"libcudart.so.13": {"libcudart.so.13"}, "libc.so.6": {"GLIBC_2.2.5"}}
    assert wanted.missing == {"libcudart.so.13": {"cudaMalloc"}, "": {"ncclSend"}}
    assert wanted.defined == {"cuda_of_its_own"}


def test_a_stand_in_has_what_is_wanted() -> None:
    source = stubs.c_source({"cudaMalloc", "cudaGetErrorString"})
    assert "long cudaMalloc(void) { return 100; }" in source
    assert 'const char *cudaGetErrorString(void) { return "no CUDA"; }' in source
    script = stubs.version_script({"libcudart.so.13": {"b", "a"}, "unused": set()})
    assert script == "libcudart.so.13 { global: a; b; };\nunused {  };\n"


def test_the_least_possible_time_follows_the_slower_of_disk_and_link() -> None:
    samples = Samples()
    for number, local in enumerate((0.5, 2.0)):
        samples.add("start_50", "local", number, {"time": local})
        samples.add("start_50", "imagefs", number, {"time": 2.0})
        derive(samples, 50e6, number, Sizes(whole=200_000_000, ahead=50_000_000))
    found = {ratio.name: ratio for ratio in sum_up(samples, ratios())}
    assert found["prefetch_vs_bound_50"] == Ratio("prefetch_vs_bound_50", 1.5, 1.0, 2.0)
    assert found["prefetch_vs_transfer_50"].value == 0.5
    assert "prefetch_vs_bound_20" not in found


def test_only_new_content_counts_as_changed(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "same").write_bytes(b"same" * 1000)
    (old / "moved").write_bytes(b"moved" * 1000)
    (new / "elsewhere").write_bytes(b"moved" * 1000)
    assert lz4_of_new(digests(old), new) == 0
    (new / "fresh").write_bytes(bytes(range(256)))  # LZ4 makes nothing of it
    (new / "copy").write_bytes(bytes(range(256)))
    (new / "link").symlink_to("fresh")
    assert lz4_of_new(digests(old), new) == 256
    (new / "zeros").write_bytes(bytes(300_000))
    known = digests(old)
    assert 256 < lz4_of_new(known, new) < 2000
    assert lz4_of_new(known, new) == 0


@pytest.mark.mount
@pytest.mark.root
@pytest.mark.slow
def test_a_container_is_prepared_and_none_is_started(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (tmp_path / "source").mkdir()
    (tmp_path / "source/text").write_bytes(b"text" * 10_000)
    built(tmp_path / "source", store, "t", {"config": {"Cmd": ["/true"]}})
    assert runtime.published(store, "t").codecs == {"cold": "lz4"}
    with host(tmp_path, drop=False) as machine:
        assert 0 < runtime.prepare_seconds(machine, f"{store}#t", 3) < 60
        assert 0 < runtime.interpreter_seconds(3) < 60
        with pytest.raises(BenchError, match=r"executed no runtime: .*other"):
            runtime.prepare_seconds(machine, f"{store}#other", 1)

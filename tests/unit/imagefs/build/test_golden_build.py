"""Equal input gives equal bytes: whatever threads do, in whatever order names come, however layers are cut."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from imagefs.build import content, packs
from imagefs.build.image import build
from imagefs.build.pipeline import BuildOptions, open_source
from imagefs.format.index import Pack
from imagefs.progress import Progress
from imagefs.repository.images import Images
from tests.support.images import archives as tar
from tests.support.images.layers import layout
from tests.support.images.stores import images_in

KIB = 1 << 10


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_SIZE", 300 * KIB)


def write_tree(root: Path) -> None:
    chance = random.Random(5)
    for folder in ("a", "b/c", "b/d"):
        (root / folder).mkdir(parents=True)
        for number in range(25):
            data = chance.randbytes(chance.choice((0, 100, 3000, 30_000, 70_000))) + bytes(chance.randrange(2) * 5000)
            (root / folder / f"{number}").write_bytes(data)
        os.link(root / folder / "7", root / folder / "again")
    (root / "b" / "same").write_bytes((root / "a" / "3").read_bytes())
    for path in [root, *root.rglob("*")]:
        os.utime(path, ns=(1_500_000_000_000000001, 1_500_000_000_000000001))


def stored(folder: Path, source: str, put: Callable[[Images], None] = lambda _images: None) -> dict[str, bytes]:
    """Every object of a new store with the image in it."""
    folder.mkdir()
    images = images_in(folder / "store")
    put(images)
    with open_source(source, BuildOptions(folder / "tmp"), Progress()) as tree:
        build(tree.root, tree.contents, images, tag="app")
    found = [path for path in (folder / "store").rglob("*") if path.is_file()]
    return {str(path.relative_to(folder / "store")): path.read_bytes() for path in found}


def test_threads_and_listings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "tree")
    source = f"dir:{tmp_path / 'tree'}"
    first = stored(tmp_path / "0", source)
    assert sum(name.startswith("packs/") for name in first) > 4
    encode, scandir = packs._encode, os.scandir
    for seed in range(1, 4):
        chance = random.Random(seed)

        def slowly(*arguments: Any, chance: random.Random = chance) -> Any:
            time.sleep(chance.random() / 200)
            return encode(*arguments)

        @contextlib.contextmanager
        def shuffled(path: bytes, chance: random.Random = chance) -> Iterator[Iterator[os.DirEntry[bytes]]]:
            with scandir(path) as entries:
                found = list(entries)
            chance.shuffle(found)
            yield iter(found)

        def put_slowly(images: Images, chance: random.Random = chance) -> None:
            put_pack = images.put_pack

            def put(pack: Pack, data: bytes) -> bool:
                time.sleep(chance.random() / 50)
                return put_pack(pack, data)

            monkeypatch.setattr(images, "put_pack", put)

        monkeypatch.setattr(packs, "_encode", slowly)
        monkeypatch.setattr(content, "os", SimpleNamespace(**{**vars(os), "scandir": shuffled}))
        assert stored(tmp_path / str(seed), source, put_slowly) == first


def test_layers_and_their_packing(tmp_path: Path) -> None:
    """One layer or two, packed or not, names in this order or that: one tree, and the same objects."""
    chance = random.Random(6)
    files = [tar.file(b"d/%d" % n, data=chance.randbytes(5000 * n), mtime="1.5") for n in range(20)]
    folder = tar.file(b"d", tar.DIRECTORY, mode=0o755, mtime="2.5")
    layers = {
        "one": ([folder, *files, tar.END],),
        "reversed": ([*reversed(files), folder, tar.END],),
        "two": ([folder, *files[:12], tar.file(b"d/3", data=b"old"), tar.END], [files[3], *files[12:], tar.END]),
    }
    found = []
    for name, archives in layers.items():
        for how in ("", "gzip", "zstd"):
            path = layout(tmp_path / f"{name}-{how}", [b"".join(parts) for parts in archives], [how] * len(archives))
            found.append(stored(tmp_path / f"{name}-{how}-store", f"oci:{path}"))
    assert all(other == found[0] for other in found)


def test_a_pack_that_cannot_be_stored_fails_the_build(tmp_path: Path) -> None:
    """Though another thread stores it, while the next one is being filled."""
    write_tree(tmp_path / "tree")

    def fail_later(images: Images) -> None:
        answers = itertools.chain([True] * 3, itertools.repeat(OSError(28, "no space")))
        images.put_pack = Mock(side_effect=answers)  # type: ignore[method-assign]

    with pytest.raises(OSError, match="no space"):
        stored(tmp_path / "0", f"dir:{tmp_path / 'tree'}", fail_later)
    assert not (tmp_path / "0" / "store" / "images").exists()

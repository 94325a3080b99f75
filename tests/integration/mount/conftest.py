import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.installed_code import InstalledCode
from tests.tools.mounts import Mounts


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    """Makes real mounts; checks afterwards that nothing is left and that no unexpected warning was logged."""
    with contextlib.closing(Mounts(tmp_path)) as made:
        yield made


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstalledCode:
    """The code of this checkout as version 0.2.0+first, in a folder of its own, from which mounts run."""
    made = InstalledCode(tmp_path / "code")
    made.install_checkout("0.2.0+first")
    monkeypatch.setenv("PYTHONPATH", str(made.folder))
    return made

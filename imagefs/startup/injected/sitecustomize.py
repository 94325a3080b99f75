"""Loaded by each interpreter below `imagefs startup trace`, which has this folder on its PYTHONPATH: times imports.

Leaves no more behind than that: the folder goes from sys.path, and the sitecustomize that the interpreter would have
loaded is loaded. An interpreter that cannot load the timing, such as one before Python 3.9, runs without: this file is
Python 2 as well.
"""

import os
import sys


def _time_imports():  # type: () -> None
    folder, _, how = os.environ.get("BOOTSEER_IMPORTS", "").rpartition(":")
    if not folder or not os.environ.get("BOOTSEER_EVENTS") or sys.version_info < (3, 9):
        return
    sys.path.insert(0, folder)
    try:
        import startup_imports  # type: ignore[import-not-found]
    finally:
        sys.path.remove(folder)
    startup_imports.time_imports(unused=how == "unused")


def _chain():  # type: () -> None
    here = os.path.dirname(__file__)
    sys.path[:] = [path for path in sys.path if path != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


try:  # noqa: SIM105 nothing is loaded for it
    _time_imports()
except Exception:  # noqa: BLE001, S110 the job is not to notice
    pass
_chain()

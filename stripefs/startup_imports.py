"""Times the imports of this process: each top-level package that is loaded is a span of the stage `imports`.

A span covers the package's modules and all that they load; its fact `own_ns` is the time of its own modules alone, so
the sum of these over all packages is the time that the process spent importing. Spans of packages that others load have
theirs as parents. Imports below the threshold are not written.

With `unused` an instant with the fact `used` false tells of each package, not of the standard library, that took 20 ms
or more, if nothing but imports looked up an attribute of one of its modules until this process wrote `ready` or the end
of `first_step`, or else ended. `from package import name` in a program is such a look-up, and so are those that
functions of the package make in its modules. A package that only registers itself when it is loaded, or whose functions
were all taken from its one module while others were loaded, is told although it is needed.

Complete with startup_events.py beside it, for Python 3.9 and later. It wraps the function of the import system that is
called for modules which are not loaded yet; those that are cost nothing. No module is loaded for it before those that
the writer of events needs are there anyway, or the process ends.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import time

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

    from stripefs.startup_events import Writer

__all__ = ["Imports", "time_imports"]

_WRITER_NEEDS = ("contextlib", "json", "queue", "re", "reprlib", "threading", "typing", "weakref")

_UNUSED = 20_000_000
_STANDARD: frozenset[str] = getattr(sys, "stdlib_module_names", frozenset())

_SYSTEM: Any = sys.modules["_frozen_importlib"]
"""The interpreter calls its `_find_and_load` by name, for every module that is not loaded."""


def time_imports(writer: Writer | None = None, *, threshold: float = 0.001, unused: bool = False) -> Imports:
    """Time imports from now on. threshold: seconds. writer: that of this process for BOOTSEER_EVENTS unless given."""
    return Imports(writer, threshold, unused)


class _Frame:
    """A module that is being loaded."""

    __slots__ = ("children", "mono", "record", "wall")

    def __init__(self, package: str, outer: _Record | None, parent: str) -> None:
        """outer: of the same package. parent: the span of the module that loads this one."""
        self.children = 0
        self.record = outer or _Record(package, self, parent)
        self.wall, self.mono = time.time_ns(), time.monotonic_ns()


class _Record:
    """A package, or modules of it, while something else loads them. frame: of the first. Times in nanoseconds."""

    __slots__ = ("error", "frame", "names", "own", "package", "parent", "span", "total")

    def __init__(self, package: str, frame: _Frame, parent: str) -> None:
        self.package, self.frame, self.parent, self.span = package, frame, parent, os.urandom(8).hex()
        self.own = self.total = 0
        self.names: list[str] = []
        self.error = ""


class Imports:
    """The timing of one process; any of its threads may import. `stop` ends it."""

    def __init__(self, writer: Writer | None, threshold: float, unused: bool) -> None:
        self._writer, self._threshold, self._unused = writer, int(threshold * 1e9), unused
        self._stacks: dict[int, list[_Frame]] = {}
        self._records: list[_Record] = []
        self._untouched: dict[str, _Record] = {}
        self._busy = False
        self._original = _SYSTEM._find_and_load
        self._watched: Any = self._watching() if unused else None
        _SYSTEM._find_and_load = self._wrapped()
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._records.clear)

    def stop(self) -> None:
        """End the timing and write the records. A later wrapper of the function stays."""
        if getattr(_SYSTEM._find_and_load, "timed_by", None) is self:
            _SYSTEM._find_and_load = self._original
        atexit.unregister(self.finish)
        self.finish()

    def finish(self) -> None:
        """The start is over: write everything, and tell which packages nothing has used."""
        self._flush()
        untouched, self._untouched = self._untouched, {}
        writer = self._events() if untouched else self._writer
        if writer is None:
            return
        for package, record in untouched.items():
            facts = {"used": False, "own_ns": record.own, "total_ns": record.total}
            writer.emit("instant", "imports", package, facts=facts)
        writer.close()

    def _wrapped(self) -> Callable[[str, Any], Any]:
        original, load = self._original, self._load

        def _find_and_load(name: str, import_: Any) -> Any:
            return load(original, name, import_)

        _find_and_load.__code__ = _of_system(_find_and_load.__code__)
        _find_and_load.timed_by = self  # type: ignore[attr-defined]
        return _find_and_load

    def _load(self, original: Callable[[str, Any], Any], name: str, import_: Any) -> Any:
        if self._busy or name in sys.modules:  # being written, or loaded by another thread or further out
            return original(name, import_)
        thread = _thread.get_ident()
        stack = self._stacks.setdefault(thread, [])
        package = name.partition(".")[0]
        outer = next((each.record for each in stack if each.record.package == package), None)
        frame = _Frame(package, outer, stack[-1].record.span if stack else "")
        stack.append(frame)
        try:
            return original(name, import_)
        except BaseException as error:
            if frame.record.frame is frame:
                frame.record.error = type(error).__name__
            raise
        finally:
            self._loaded(thread, stack, frame, name)

    def _loaded(self, thread: int, stack: list[_Frame], frame: _Frame, name: str) -> None:
        total = time.monotonic_ns() - frame.mono
        stack.pop()
        record = frame.record
        record.own += total - frame.children
        record.names.append(name)
        if stack:
            stack[-1].children += total
        if record.frame is frame:
            record.total = total
            if total >= self._threshold:
                self._records.append(record)
                if self._unused and not record.error and total >= _UNUSED and record.package not in _STANDARD:
                    self._watch(record)
        if not stack:
            del self._stacks[thread]
            if all(needed in sys.modules for needed in _WRITER_NEEDS):
                self._flush()
        if self._unused and name.endswith("startup_events") and name in sys.modules:
            sys.modules[name].at_ready.append(self.finish)

    def _flush(self) -> None:
        records = self._records[:]
        if not records:
            return
        del self._records[: len(records)]
        writer = self._events()
        if writer is None:
            return
        for record in records:
            begin = record.frame
            facts: dict[str, object] = {"own_ns": record.own, "modules": len(set(record.names))}
            if record.error:
                facts["error"] = record.error
            for event, after in (("begin", 0), ("end", record.total)):
                writer.emit(
                    event,
                    "imports",
                    record.package,
                    span=record.span,
                    parent="" if after else record.parent or writer.identity.parent,
                    facts=facts if event == "end" else None,
                    wall_ns=begin.wall + after,
                    mono_ns=begin.mono + after,
                )

    def _events(self) -> Writer | None:
        """The writer, whose modules are not timed when they are loaded for it. None where they cannot be loaded any
        more, as in a program that has become another user or has left for another root: its imports are not to fail."""
        if self._writer is None:
            self._busy = True
            try:
                self._writer = _startup_events().default_writer("trace")
            except Exception:  # noqa: BLE001
                return None
            finally:
                self._busy = False
        return self._writer

    def _watch(self, record: _Record) -> None:
        """See the first look-up of an attribute of a module of this package."""
        self._untouched[record.package] = record
        for name in record.names:
            module: Any = sys.modules.get(name)
            if type(module) is type(sys):
                module.__class__ = self._watched

    def _watching(self) -> type:
        plain, stacks = type(sys), self._stacks
        get_ident, imports = _thread.get_ident, self

        class Watched(plain):  # type: ignore[misc, valid-type]
            def __getattribute__(self, name: str) -> Any:
                value = plain.__getattribute__(self, name)
                if name[:2] != "__" and get_ident() not in stacks:
                    self.__class__ = plain  # type: ignore[assignment]
                    imports._untouched.pop(plain.__getattribute__(self, "__name__").partition(".")[0], None)
                return value

        return Watched


def _of_system(code: CodeType) -> CodeType:
    """Code whose frames tracebacks of failed imports leave out, as those of the import system itself."""
    return code.replace(co_filename="<frozen importlib._bootstrap>")


Imports._load.__code__ = _of_system(Imports._load.__code__)


def _startup_events() -> Any:
    if __package__:
        from stripefs import startup_events

        return startup_events
    import importlib.util

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup_events.py")
    spec = importlib.util.spec_from_file_location("_bootseer_startup_events", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Copier: it copies many files side by side, from the sources of a request to its destination."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple

from stripefs.api import Entry, ReadFile
from stripefs.api import engine as engines
from stripefs.copy.journal import CopyJournal, JournalEntry
from stripefs.copy.output import STEP, FileMetadata, Output, open_output
from stripefs.copy.plan import CopySource, assign
from stripefs.copy.tree import CopyItem, Place, expand
from stripefs.errors import ConfigError, StaleVersion, StripefsError
from stripefs.format.blocks import check_sums
from stripefs.osutil import umask

__all__ = ["Copied", "Copier", "CopyOptions", "CopyRequest", "Failure", "Named", "run_request"]

_LOOK_EVERY = 0.1
"""Seconds between two looks at how far it is: as often as a status line is drawn."""

_OWNER = 0o700
"""Permissions of a directory for its owner while it is filled."""


class CopyOptions(NamedTuple):
    """compare: read what was stored, and compare it. preserve: modes and times are to be those of the sources. at_once:
    files copied side by side."""

    compare: bool = True
    preserve: bool = False
    at_once: int = 8


class Failure(NamedTuple):
    """A file that was not copied. target: None where it did not come to that. kept: where what has come of it lies, to
    be gone on with; "" for nowhere."""

    source: Place
    target: Place | None
    error: Exception
    kept: str = ""


@dataclass(slots=True)
class Copied:
    """Result of a copy. Sizes in bytes.

    files, size: of all that were to be copied. done: files that were. moved: bytes that were read for that. resumed:
    bytes that were there from an earlier try. skipped, skipped_size: files that were there as they are. compared:
    bytes. plain: services that keep no modes and times, where these were wanted. kept: of files that an interrupt broke
    off. current: the file that was begun last. unnoted: why the journal does not have all that was copied.
    """

    files: int = 0
    size: int = 0
    done: int = 0
    moved: int = 0
    resumed: int = 0
    skipped: int = 0
    skipped_size: int = 0
    compared: int = 0
    plain: set[str] = field(default_factory=set)
    failed: list[Failure] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    current: str = ""
    unnoted: OSError | None = None


class Copier:
    """Copies once."""

    def __init__(self, options: CopyOptions) -> None:
        self.found = Copied()
        self._options = options
        self._journal: CopyJournal | None = None
        self._umask = umask()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._queue: list[CopyItem] = []

    def run(self, items: Iterable[CopyItem], journal: CopyJournal | None, show: Callable[[Copied], None]) -> None:
        """Make the directories, then copy the files, but for those that `journal` says are there already. `show` is
        called on this thread, now and then.

        Failures are in `found`. An interrupt ends it, and the engine of this process with it.
        """
        items = list(items)
        files = self._made(items)
        self.found.files, self.found.size = len(files), sum(file.entry.size for file in files)
        self._queue = files[::-1]
        if journal is not None:
            self._journal = journal
            try:
                journal.begin()
            except OSError as error:
                self.found.unnoted = error
        try:
            self._all(show)
        finally:
            if self._journal is not None:
                self._journal.end(all_done=not self._stopped.is_set() and not self.found.failed)
        if self._options.preserve:
            self._finish([item for item in items if item.entry.type == "directory"])

    def _all(self, show: Callable[[Copied], None]) -> None:
        with ThreadPoolExecutor(self._options.at_once, thread_name_prefix="copy") as pool:
            try:
                under_way = {pool.submit(self._work) for _ in range(min(self._options.at_once, len(self._queue)))}
                while under_way:
                    ended: set[Future[None]]
                    ended, under_way = wait(under_way, _LOOK_EVERY, FIRST_COMPLETED)
                    for each in ended:
                        each.result()
                    show(self.found)
            except BaseException:
                self._stopped.set()
                engines.stop()  # so that no thread goes on to wait for a store
                raise

    # -- directories -------------------------------------------------------------------------------------------------

    def _made(self, items: Iterable[CopyItem]) -> list[CopyItem]:
        """Make all directories; the files whose directories are there."""
        files: list[CopyItem] = []
        missing: tuple[bytes, ...] = ()
        for item in items:
            if item.target.path.startswith(missing):
                continue
            if item.entry.type == "file":
                files.append(item)
                continue
            try:
                _make(item)
            except OSError as error:
                self.found.failed.append(Failure(item.source, item.target, error))
                missing += (item.target.path.rstrip(b"/") + b"/",)
        return files

    def _finish(self, folders: list[CopyItem]) -> None:
        """Directories look like their sources when all is in them."""
        for folder in reversed(folders):
            try:
                folder.target.files.set_attributes(
                    folder.target.path, mode=folder.entry.mode, mtime_ns=folder.entry.mtime_ns
                )
            except FileNotFoundError:
                pass  # it could not be made, or somebody has removed it
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    self.found.plain.add(folder.target.key[0])
                else:
                    self.found.failed.append(Failure(folder.source, folder.target, error))

    # -- files -------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """The loop of each thread."""
        while True:
            with self._lock:
                if not self._queue or self._stopped.is_set():
                    return
                file = self._queue.pop()
                self.found.current = str(file.source)
            self._guarded(file)

    def _guarded(self, file: CopyItem) -> None:
        """Copy a file; why it is not copied is noted."""
        kept: list[str] = []
        try:
            self._copy(file, kept)
        except _Stopped:
            pass
        except (OSError, StripefsError) as error:
            if not self._stopped.is_set():
                with self._lock:
                    self.found.failed.append(Failure(file.source, file.target, error, "".join(kept)))
        if self._stopped.is_set():
            with self._lock:
                self.found.kept += kept

    def _copy(self, file: CopyItem, kept: list[str]) -> None:
        """kept: gets where something is kept of a file that does not get there."""
        there = file.target.stat()
        if there is not None and self._is_done(file, there):
            with self._lock:
                self.found.skipped += 1
                self.found.skipped_size += file.entry.size
            return
        with file.source.files.open(file.source.path) as source:
            seen = Entry.of(source.status)
            with self._lock:
                self.found.size += seen.size - file.entry.size
            service, path = file.source.key
            origin = f"{service} {os.fsdecode(path)} {seen.version}"
            output = open_output(file.target, seen.size, origin, self._looks(seen, there))
            resumed = output.done
            try:
                self._move(source, output)
                self._ensure_unchanged(file, seen)
                output.publish(self._compared if self._options.compare else None)
            except BaseException as error:
                if where := output.give_up(error):
                    kept.append(where)
                raise
        with self._lock:
            self.found.done += 1
            self.found.resumed += resumed
            if output.plain and self._options.preserve:
                self.found.plain.add(file.target.key[0])
        self._note(file, seen)

    def _move(self, source: ReadFile, output: Output) -> None:
        buffer = memoryview(bytearray(min(STEP, source.size)))
        at = output.done
        while at < source.size:
            self._ensure_wanted()
            view = buffer[: source.pread_into(buffer[: source.size - at], at)]
            output.write(view, check_sums(view))
            at += len(view)
            with self._lock:
                self.found.moved += len(view)

    def _ensure_unchanged(self, file: CopyItem, seen: Entry) -> None:
        """Reading answers one version as long as it can be had; it is to be the one that is there, too."""
        now = file.source.stat()
        if now is None or now.version != seen.version:
            raise StaleVersion(f"it was {'removed' if now is None else 'replaced or changed'} while it was copied")

    def _compared(self, size: int) -> None:
        self._ensure_wanted()
        with self._lock:
            self.found.compared += size

    def _ensure_wanted(self) -> None:
        if self._stopped.is_set():
            raise _Stopped

    def _looks(self, seen: Entry, there: Entry | None) -> FileMetadata:
        """As cp(1): a new file has the mode of the source but for the umask, one that is replaced keeps its own."""
        if self._options.preserve:
            return FileMetadata(seen.mode, seen.mtime_ns)
        if there is not None and there.type == "file":
            return FileMetadata(there.mode)
        return FileMetadata(seen.mode & 0o777 & ~self._umask)

    # -- what was done before ----------------------------------------------------------------------------------------

    def _is_done(self, file: CopyItem, there: Entry) -> bool:
        """True if this version of the source was copied to what is there now."""
        line = self._journal.before.get(os.fsdecode(file.target.path)) if self._journal else None
        if line is None or (self._options.compare > line.compared) or (self._options.preserve > line.preserved):
            return False
        return (line.source, line.copy) == (file.entry.version, there.version)

    def _note(self, file: CopyItem, seen: Entry) -> None:
        if self._journal is None:
            return
        try:
            if (there := file.target.stat()) is not None:
                line = JournalEntry(seen.version, there.version, self._options.compare, self._options.preserve)
                self._journal.note(os.fsdecode(file.target.path), line)
        except OSError as error:
            self.found.unnoted = error


def _make(folder: CopyItem) -> None:
    there = folder.target.stat()
    if there is None:
        folder.target.files.mkdir(folder.target.path, folder.entry.mode | _OWNER, exist_ok=True)
    elif there.type != "directory":
        raise FileExistsError(errno.EEXIST, "something that is no directory is there already")


class _Stopped(Exception):
    """The copy is not wanted any more."""


class Named(NamedTuple):
    """A place, the last name that somebody wrote for it (b"" for none), and whether a slash was behind it."""

    place: Place
    name: bytes
    slash: bool = False


class CopyRequest(NamedTuple):
    """recursive: copy directories too. exact: the target is the copy itself, not a directory to put it into."""

    sources: Sequence[Named]
    target: Named
    recursive: bool = False
    exact: bool = False


def run_request(order: CopyRequest, copier: Copier, environ: Mapping[str, str], show: Callable[[Copied], None]) -> None:
    """Copy; the result is in `copier.found`. environ says where the cache folder is.

    Raises ConfigError for what cannot be meant, OSError where nobody can tell what is at the target or make it.
    """
    target, slash = order.target.place, order.target.slash
    found = list(_found(order, copier))
    there = target.stat()
    journal = None
    if len(order.sources) > 1 or any(entry.type == "directory" for _, entry in found):
        journal = CopyJournal([each.place for each in order.sources], target, environ, exact=order.exact)
    # A directory that an interrupted command has made does not change the meaning of the command.
    kind = "" if there is None or (journal is not None and journal.whole) else there.type
    names = assign(
        [CopySource(str(each.place), each.name, entry.type, each.place.key) for each, entry in found],
        CopySource(str(target), order.target.name, kind, target.key),
        recursive=order.recursive,
        exact=order.exact,
        slash=slash,
        several=len(order.sources) > 1,
    )

    def failed(place: Place, error: Exception) -> None:
        copier.found.failed.append(Failure(place, None, error))

    items: list[CopyItem] = []
    for (each, entry), name in zip(found, names, strict=True):
        if isinstance(name, ConfigError):
            failed(each.place, name)
        else:
            items += expand(each.place, entry, target.below(name), failed)
    if slash and there is None and items:
        target.files.mkdir(target.path, parents=True, exist_ok=True)
    if journal is not None and not journal.begun:
        journal.whole = not kind and names == [b""]
    copier.run(items, journal if items else None, show)


def _found(order: CopyRequest, copier: Copier) -> Sequence[tuple[Named, Entry]]:
    """The entries at the sources; sources without one have failed."""
    found = []
    for each in order.sources:
        try:
            entry = each.place.stat()
            if entry is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            found.append((each, entry))
        except OSError as error:
            copier.found.failed.append(Failure(each.place, None, error))
    return found

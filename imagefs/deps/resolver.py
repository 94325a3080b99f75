"""Questions to pip and uv about the distributions that an installation would bring, their answers, the cache of these,
and how an installation is held to that.

pip answers with its installation report (`pip install --dry-run --report -`), uv with a `pylock.toml` (`uv pip
compile`), which takes the options of `uv pip install` that decide about versions and files.

The installers then get a constraints file with the versions of the lock on their command line; a variable would also
reach the installations of build requirements. uv checks the digests in it. pip would then want digests of everything,
so pip is asked for its installation report instead, in which are the digests of what it has installed.

Answers are kept by this host and by the store:

    CACHE/deps/locks/NAME     a document: `at`, seconds since 1970, and `lock`
    STORE/locks/NAME          the same

NAME is the digest of everything that decides about the answer but the index itself. An answer is believed for
`resolve_age` seconds, so an index is asked once in that time by all hosts that share a store, and hosts that resolve at
the same moment take the first answer that reached the store.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from imagefs.deps import publications
from imagefs.deps.command import Call, options_among
from imagefs.deps.facts import captured
from imagefs.deps.lock import Lock, LockedRequirement, RequirementKind, read_lock
from imagefs.errors import FormatError, SnapshotError
from stripefs.errors import StripefsError
from stripefs.settings import StoreSettings

if TYPE_CHECKING:
    from imagefs.repository.snapshots import Snapshots

__all__ = [
    "QUIET",
    "LockCache",
    "LockedInstall",
    "Question",
    "ResolvedLock",
    "RunResolver",
    "caching",
    "is_uncached",
    "question_for",
    "read_answer",
    "run_here",
]

_VALUED = frozenset((
    *("-f", "--find-links", "-i", "--index-url", "--extra-index-url", "--index", "--default-index", "-c"),
    *("--constraint", "--constraints", "-b", "--build-constraint", "--build-constraints", "--override", "--overrides"),
    *("--exclude", "--excludes", "--prerelease", "--resolution", "--exclude-newer", "--exclude-newer-package"),
    *("--index-strategy", "--keyring-provider", "--allow-insecure-host", "--trusted-host", "--no-binary"),
    *("--only-binary", "-C", "--config-setting", "--config-settings", "--config-settings-package"),
    *("--no-build-isolation-package", "--no-sources-package", "--extra", "--group", "--python-version"),
    *("--python-platform", "--fork-strategy", "--cache-dir", "--link-mode", "--config-file"),
))  # fmt: skip

_SWITCHES = frozenset((
    *("--no-index", "--no-deps", "--pre", "--no-build", "--no-build-isolation", "--no-sources", "--all-extras"),
    *("--offline", "--no-cache", "-n", "--no-config", "--native-tls", "--system-certs", "--refresh"),
))  # fmt: skip
"""Options of `uv pip install` that `uv pip compile` has too, with values and without."""


_UNCACHED = frozenset(("--no-cache", "--no-cache-dir", "-n"))
"""uv's words for no cache."""

_LOUD = re.compile(r"-[qv]+|--quiet|--verbose")


class Question(NamedTuple):
    """A program that resolves: its words, and what it gets on standard input."""

    command: Sequence[str]
    text: str = ""


class LockedInstall(NamedTuple):
    """An installation that is held to a lock.

    setup, command: as in `Request`. tool: pip or uv. cached: whether the lock was resolved by an earlier start.
    """

    setup: Sequence[str]
    command: Sequence[str]
    tool: str
    lock: Lock
    cached: bool

    @property
    def constraints(self) -> str:
        """The content of the file of constraints."""
        return self.lock.constraints(hashed=self.tool == "uv")

    def words(self, constraints: str, report: str) -> list[str]:
        """The installer's command line. constraints: the path of that file. report: where pip's report is to go."""
        more = ["--constraint", constraints, *(["--report", report] if self.tool == "pip" else [])]
        words = list(self.command)
        end = words.index("--") if "--" in words else len(words)
        return [*words[:end], *more, *words[end:]]

    def broken(self, report: str | None) -> str:
        """The difference of what pip says it has installed from the lock; "" for none. report: None where there is
        none.
        """
        if self.tool != "pip":
            return ""
        try:
            found = Lock.of(_of_report(json.loads(report or "")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return "pip did not say what it has installed"
        known = {_without_build(one) for one in self.lock.requirements}
        strange = [one for one in found.requirements if _without_build(one) not in known]
        return f"{strange[0].name} {strange[0].version} is not what was resolved before" if strange else ""


def _without_build(one: LockedRequirement) -> LockedRequirement:
    """As pip knows it: of a directory of this host it has no digest."""
    return one._replace(digests=()) if one.kind in ("local", "editable") else one


def is_uncached(call: Call, config: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Tells whether the user lets an installer keep nothing of its downloads. config: as pip tells it."""
    environ = {**environ, **call.variables}
    if call.tool == "uv":
        return bool(call.switches & _UNCACHED) or environ.get("UV_NO_CACHE", "") not in ("", "0", "false")
    said = (environ.get("PIP_NO_CACHE_DIR"), config.get("global.no-cache-dir"), config.get("install.no-cache-dir"))
    return "--no-cache-dir" in call.switches or any(said)


def caching(command: Sequence[str], call: Call, folder: str) -> list[str]:
    """A command that runs `call`, with this directory as the cache of the installer in place of none."""
    begin = _place(command, call) + len(call.program)
    end = begin + (list(command[begin:]).index("--") if "--" in command[begin:] else len(command[begin:]))
    words, rest = command[begin:end], command[end:]
    if call.tool == "pip":  # of two options about its cache the later one holds
        return [*command[:begin], *words, "--cache-dir", folder, *rest]
    kept = [word for word in words if word not in _UNCACHED]
    return ["env", "-u", "UV_NO_CACHE", *command[:begin], *kept, "--cache-dir", folder, *rest]


def question_for(command: Sequence[str], call: Call, python: str, *, setup: bool) -> Question:
    """The question that resolves the requirements of a command that runs `call`.

    python: the interpreter that is installed for. setup: whether that comes into being only with the installation, so
    that nothing is installed for it yet.
    """
    place = _place(command, call)
    before, program = command[:place], call.program
    rest = list(command[place + len(program) :])
    if call.tool == "pip":
        asked = ["--dry-run", "--quiet", "--report", "-"]
        rest = [
            word for word in rest if not _LOUD.fullmatch(word)
        ]  # the report is all that is wanted on standard output
        if setup:
            rest = _without(rest, "--python")
            asked.append("--ignore-installed")
        end = rest.index("--") if "--" in rest else len(rest)
        return Question([*before, *program, *rest[:end], *asked, *rest[end:]])
    files = list(call.values.get("requirement", ()))
    lines = [f"-e {text}" if editable else text for text, editable in call.requirements]
    options = [
        "--quiet",
        "--no-header",
        "--format",
        "pylock.toml",
        "--python",
        python,
        *options_among(rest, _VALUED, _SWITCHES),
    ]
    if "sync" in rest and "--no-deps" not in options:
        options.append("--no-deps")
    sources = [*files, *(["-"] if lines or not files else [])]
    return Question([*before, *program, "pip", "compile", *options, *sources], "".join(f"{line}\n" for line in lines))


def read_answer(tool: str, text: str, resolver: str) -> Lock:
    """The lock in what the resolver printed. resolver: name and version. Raises FormatError."""
    if tool == "uv":
        return Lock.of(read_lock("pylock.toml", text.encode()), resolver)
    try:
        return Lock.of(_of_report(json.loads(text)), resolver)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError("pip's report on what it would install makes no sense") from error


def _of_report(report: Any) -> Iterator[LockedRequirement]:
    """The distributions of a report of pip. Raises ValueError, KeyError, TypeError and AttributeError for no report."""
    for item in report["install"]:
        info, metadata = item["download_info"], item["metadata"]
        kind, digests, source = _origin(info, direct=bool(item.get("is_direct")))
        yield LockedRequirement(metadata["name"], metadata["version"], kind, digests, source)


def _origin(info: Mapping[str, Any], *, direct: bool) -> tuple[RequirementKind, Sequence[str], str]:
    url = info["url"]
    if "vcs_info" in info:
        repository = info["vcs_info"]
        return "vcs", (), f"{repository['vcs']}+{url}@{repository['commit_id']}"
    path = unquote(urlsplit(url).path)
    if "dir_info" in info:
        # Where a directory lies differs between nodes, but for a link to it that decides.
        return ("editable", (), path) if info["dir_info"].get("editable") else ("local", (), "")
    archive = info.get("archive_info", {})
    hashes = dict(archive.get("hashes") or {})
    if not hashes and archive.get("hash"):  # as pip of old wrote it
        name, _, value = archive["hash"].partition("=")
        hashes = {name: value}
    remote = direct and not url.startswith("file:")
    return (
        "wheel" if path.endswith(".whl") else "sdist",
        [f"{name}:{value}" for name, value in hashes.items()],
        url if remote else "",
    )


def _place(command: Sequence[str], call: Call) -> int:
    """The index of the first word that runs the installer."""
    length = len(call.program)
    return next(at for at in range(len(command)) if list(command[at : at + length]) == list(call.program))


def _without(words: Iterable[str], option: str) -> list[str]:
    """The words without an option and its value."""
    found, rest = [], iter(words)
    for word in rest:
        if word == option:
            next(rest, "")
        elif not word.startswith(f"{option}="):
            found.append(word)
    return found


_LONGEST = 600.0
"""Seconds for a resolver, which may have to build packages to learn what they need."""

QUIET = {"PIP_VERBOSE": "0", "PIP_QUIET": "0"}
"""Variables for resolvers, whose standard output is their answer."""

_SKEW = 60.0
"""Seconds by which the clock of another host may be ahead."""

RunResolver = Callable[[Question, str, Mapping[str, str], Sequence[str]], str]
"""Runs a question in a folder and an environment, where these paths of the host are seen; what it printed. Raises
SnapshotError with the reason where that fails."""


class ResolvedLock(NamedTuple):
    """cached: whether it was resolved by an earlier start."""

    lock: Lock
    cached: bool


class LockCache:
    """The locks of this host's cache and of a store, and the resolver that `run` runs. store: None for no store.

    make: whether a store that is not there yet is made. read: the document of this name in the store, nothing where
    there is none, in place of reading it here. Raises StripefsError."""

    def __init__(
        self,
        cache: str,
        store: StoreSettings | None,
        age: float,
        run: RunResolver | None = None,
        *,
        make: bool = True,
        read: Callable[[str], bytes] | None = None,
    ) -> None:
        self._cache = cache
        self._store = store
        self._age = age
        self._run = run or run_here
        self._make = make
        self._read_note = read or self._read_from_store

    def lock(
        self,
        name: str,
        tool: tuple[str, str],
        question: Question,
        folder: str,
        environ: Mapping[str, str],
        paths: Sequence[str],
    ) -> ResolvedLock:
        """The lock. tool: name and version of the resolver. Raises SnapshotError."""
        if (known := self._read_local(name)) is not None:
            return ResolvedLock(known, cached=True)
        if (known := self._stored(name)) is not None:
            self._keep(name, known)
            return ResolvedLock(known, cached=True)
        try:
            lock = read_answer(tool[0], self._run(question, folder, environ, paths), " ".join(tool))
        except FormatError as error:
            raise SnapshotError(error.message) from error
        other = self._put(name, lock)
        self._keep(name, other or lock)
        return ResolvedLock(other or lock, cached=other is not None)

    def forget(self, name: str) -> None:
        """Drop a lock that does not hold any more. Other hosts believe it until it is old."""
        self._path(name).unlink(missing_ok=True)

    def _read_local(self, name: str) -> Lock | None:
        try:
            return self._read(self._path(name).read_bytes())
        except OSError:
            return None

    def _keep(self, name: str, lock: Lock) -> None:
        with contextlib.suppress(OSError):  # then the next start asks again
            publications.keep_file(self._path(name), _document(lock).decode())

    def _path(self, name: str) -> Path:
        return Path(self._cache, "deps/locks", name)

    def _stored(self, name: str) -> Lock | None:
        with contextlib.suppress(StripefsError, OSError):
            if data := self._read_note(name):
                return self._read(data)
        return None

    def _read_from_store(self, name: str) -> bytes:
        with self._snapshots() as snapshots:
            return snapshots.note("locks", name) if snapshots is not None else b""

    def _put(self, name: str, lock: Lock) -> Lock | None:
        """Put the lock into the store for others. Answers the lock that another host has put there meanwhile, else
        None."""
        with contextlib.suppress(StripefsError, OSError), self._snapshots() as snapshots:
            if snapshots is None:
                return None
            if (data := snapshots.note("locks", name)) and (other := self._read(data)) is not None:
                return other
            snapshots.put_note("locks", name, _document(lock))
        return None

    @contextlib.contextmanager
    def _snapshots(self) -> Iterator[Snapshots | None]:
        if self._store is None:
            yield None
            return
        from imagefs.repository.images import Images  # which most starts need not load
        from imagefs.repository.snapshots import Snapshots
        from imagefs.repository.store import open_repository

        with contextlib.closing(open_repository(self._store, make=self._make)) as repository:
            yield Snapshots(Images(repository))

    def _read(self, data: bytes) -> Lock | None:
        """None for one that is too old, or none."""
        try:
            document = json.loads(data)
            at = float(document["at"])
            fresh = -_SKEW <= time.time() - at < self._age
            return Lock.from_document(document["lock"]) if fresh else None
        except (ValueError, KeyError, TypeError, RecursionError, FormatError):
            return None


def run_here(question: Question, folder: str, environ: Mapping[str, str], _paths: Sequence[str]) -> str:
    """The output of a resolver on this host. Raises SnapshotError."""
    try:
        done = captured(question.command, {**environ, **QUIET}, folder, _LONGEST, question.text)
    except OSError as error:
        raise SnapshotError(f"{question.command[0]} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise SnapshotError(f"the requirements could not be resolved within {_LONGEST:.0f} s") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")]
        why = (errors or lines or [f"exit status {done.returncode}"])[-1]
        raise SnapshotError(f"the requirements could not be resolved: {why}")
    return done.stdout


def _document(lock: Lock) -> bytes:
    return json.dumps({"at": time.time(), "lock": lock.to_document()}, sort_keys=True).encode()

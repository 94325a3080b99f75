"""Paths and URLs on the command line: a mount's source and a path in it, a store, or a file somewhere in one.

Commands that copy, list and remove names resolve them here, and get the messages for names that fail.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from stripefs import config as configuration
from stripefs.cli.commands import given
from stripefs.cli.mounting import absolute
from stripefs.cli.output import tell
from stripefs.errors import ConfigError, StoreError, StripefsError
from stripefs.settings import CacheSettings, Settings, redact

if TYPE_CHECKING:
    from stripefs.api import FileSystem
    from stripefs.assembly import AssembledStore
    from stripefs.copy.tree import Place

__all__ = [
    "Failures",
    "begin",
    "configure_logs",
    "ends_with_slash",
    "ensure_writable",
    "inside_mount",
    "named",
    "opened_file",
    "opened_source",
    "place",
    "plainly",
    "reason",
    "unfollowed",
    "written_name",
]


def place(path: str, flags: configuration.Given, config: str, *, follow: bool = True) -> tuple[Settings, bytes]:
    """Settings of a store, and the path in it; b"" for a URL or a path outside all mounts, which names it itself.

    Inside a mount its source and the way it reaches it are taken, changed by what flags say. follow: of a path whose
    last name is a link, what it leads to.
    """
    from stripefs.store.url import refuse_half_url

    settings = configuration.resolve(flags, config=config)
    refuse_half_url(path)
    if "://" not in path:
        found = inside_mount(os.path.realpath(path) if follow else unfollowed(path))
        if found is not None:
            mounted, inside = found
            mounted = mounted._replace(mount=settings.mount, write=settings.write)
            chosen = {o.attribute: o.section for o in configuration.OPTIONS if o.name in flags}
            for section in ("store", "read", "cache"):
                ours, theirs = getattr(settings, section), getattr(mounted, section)
                changed = {name: getattr(ours, name) for name, where in chosen.items() if where == section}
                mounted = mounted._replace(**{section: theirs._replace(**changed)})
            return mounted, inside
    return settings._replace(store=settings.store._replace(url=absolute(path))), b""


def unfollowed(path: str) -> str:
    """`path` without links in front of its last name."""
    above, name = os.path.split(path.rstrip("/"))
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(above), name)


def inside_mount(path: str) -> tuple[Settings, bytes] | None:
    """Access of the mount that shows `path` to its source, and the path in there; None when no mount of ours does."""
    from stripefs.fuse.control import find_mounts, query

    for mount in reversed(find_mounts()):  # a mount inside another one comes after it
        inside = os.path.relpath(path, mount.mountpoint)
        if inside != ".." and not inside.startswith("../"):
            told = query(mount.mountpoint, "status")["settings"]
            settings = Settings.from_json(json.dumps(told | {"mount": {"options": []}}))
            return settings, b"/" + (b"" if inside == "." else os.fsencode(inside))
    return None


@contextmanager
def opened_source(settings: Settings, inside: bytes) -> Iterator[AssembledStore]:
    """The store of a source as a whole, from what `place` answered. Raises ConfigError for a path inside a mount."""
    if inside not in (b"", b"/"):
        raise ConfigError("this takes a source as a whole", hint="give its URL or the mountpoint")
    from stripefs.assembly import open_source

    with closing(open_source(settings)) as source:
        yield source


@contextmanager
def opened_file(settings: Settings, inside: bytes) -> Iterator[tuple[AssembledStore, bytes]]:
    """The source that a file belongs to and its path there, from what `place` answered; the file need not exist."""
    from stripefs.assembly import find_source, open_source

    settings, path = find_source(settings, inside)
    with closing(open_source(settings)) as source:
        yield source, path


def configure_logs(ctx: click.Context, settings: Settings | None = None, config: str = "") -> None:
    """Log at the level of `settings` where the flags name one, else errors alone. settings: those of the flags and
    `config` where they are not known yet."""
    from stripefs import logs

    level = "error"
    if "log-level" in given(ctx):
        level = (settings or configuration.resolve(given(ctx), config=config)).mount.log_level
    logs.configure("text", level)


def begin(ctx: click.Context, config: str) -> None:
    """The first steps of commands that copy, list and remove: log lines as flags say, memory that is given back."""
    from stripefs.store.allocator import tune_allocator

    configure_logs(ctx, config=config)
    tune_allocator()


def named(ctx: click.Context, text: str, config: str, *, follow: bool = True, root: str = "") -> Place:
    """The place that `text` stands for: inside a stripefs mount one of its source, a URL, else a local path.

    Nothing is taken from a cache on local disk, or put there. follow: of a local path whose last name is a link, what
    it leads to. root: the URL of the source that it lies in. Raises StripefsError, OSError.
    """
    from stripefs.api import FileSystem
    from stripefs.copy.tree import Place

    settings, inside = place(text, given(ctx), config, follow=follow)
    settings = settings._replace(cache=CacheSettings())
    if inside:
        return Place(*FileSystem.reached(settings, inside))
    if root:
        source, _ = FileSystem.reached(_at(settings, absolute(root)), b"/")
        return Place(source, _inside(settings.store.url, absolute(root), source))
    if "://" in text:
        return Place(*_in_store(settings))
    path = os.path.realpath(text) if follow else unfollowed(text)
    return Place(*FileSystem.reached(_at(settings, path)), local=True)


def written_name(text: str) -> bytes:
    """The last name in a path or URL as it is written, b"" where that is none (a root, `.`, `..`)."""
    name = _path_in(text).rstrip(b"/").rpartition(b"/")[2]
    return b"" if name in (b".", b"..") else name


def ends_with_slash(text: str) -> bool:
    """True if it says that it names a directory."""
    return _path_in(text).endswith(b"/")


def ensure_writable(text: str) -> None:
    """Raises ConfigError for a path on a mount that is read-only: its store is not written past it."""
    if "://" in text:
        return
    path = os.path.realpath(text)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise ConfigError(f"{text} is on a mount that is read-only", hint="name its store, or mount it with --rw")


def reason(error: Exception, name: str) -> tuple[str, str]:
    """The message and hint of an error about the file called `name`."""
    cause = error.__cause__ if isinstance(error.__cause__, StripefsError) else error
    if isinstance(cause, StripefsError):
        head, colon, rest = cause.message.partition(": ")
        return (rest if colon and name.endswith(head) else cause.message), cause.hint
    if not isinstance(cause, OSError) or not cause.strerror:
        return str(cause), ""
    about = os.fsdecode(cause.filename) if isinstance(cause.filename, str | bytes) else ""
    return f"{about}: {cause.strerror}" if about and about not in name else cause.strerror, ""


@contextmanager
def plainly(name: object) -> Iterator[None]:
    """Around what nothing can be done without: an OSError about what is called `name` becomes the error that it is to
    the user."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if isinstance(error.__cause__, StripefsError):
            raise error.__cause__ from None
        raise StoreError(f"{redact(str(name))}: {reason(error, str(name))[0]}") from error


class Failures:
    """Errors of some of several names: printed at once, while the command goes on with the others.

    code: the command's exit code. found: the errors in their --json form.
    """

    def __init__(self) -> None:
        self.code = 0
        self.found: list[dict[str, str]] = []

    @contextmanager
    def noted(self, name: object) -> Iterator[None]:
        """Around what is done with what is called `name`. That nobody reads our output concerns all."""
        try:
            yield
        except BrokenPipeError:
            raise
        except (OSError, StoreError) as error:
            self.add(str(name), error)

    def add(self, name: str, error: Exception) -> None:
        what, hint = reason(error, name)
        tell(f"{redact(name)}: {what}", hint)
        self.found.append({"path": redact(name), "error": what})
        unusable = isinstance(error.__cause__, ConfigError)
        self.code = max(self.code, ConfigError.exit_code if unusable else StoreError.exit_code)


def _in_store(settings: Settings) -> tuple[FileSystem, bytes]:
    """A wrapped store is a source by itself: that at the URL where that is a directory."""
    from stripefs.api import FileSystem
    from stripefs.store.url import parse_url

    if parse_url(settings.store.url).wrappers:
        whole, path = FileSystem.reached(settings, b"/")
        try:
            whole.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        else:
            return whole, path
    return FileSystem.reached(settings)


def _inside(url: str, root: str, source: FileSystem) -> bytes:
    """The path of what is at `url` in the source at `root`, or the source itself."""
    from stripefs.api.sources import normal
    from stripefs.store.url import parse_url

    return b"/" if normal(parse_url(url).path) == normal(parse_url(root).path) else source.path_of(url)


def _path_in(text: str) -> bytes:
    from stripefs.store.url import parse_url

    return parse_url(text).path if "://" in text else os.fsencode(text)


def _at(settings: Settings, url: str) -> Settings:
    return settings._replace(store=settings.store._replace(url=url))

"""What a PATH or URL stands for where names are copied, listed and removed, and what is said where that fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from stripefs import config as configuration
from stripefs.cli.border import tell
from stripefs.cli.flags import given
from stripefs.cli.mounting import absolute
from stripefs.cli.places import place, unfollowed
from stripefs.errors import ConfigError, StoreError, StripefsError
from stripefs.settings import CacheSettings, redact

if TYPE_CHECKING:
    from stripefs.api import FileSystem
    from stripefs.api.place import Place
    from stripefs.settings import Settings

__all__ = ["Troubles", "begin", "ends_with_slash", "ensure_writable", "named", "plainly", "reason", "written_name"]


def begin(ctx: click.Context, config: str) -> None:
    """What each of these commands does first: log lines as flags say, memory that is given back."""
    from stripefs import logs
    from stripefs.store.allocator import tune_allocator

    flags = given(ctx)
    level = configuration.resolve(flags, config=config).mount.log_level if "log-level" in flags else "error"
    logs.configure("text", level)
    tune_allocator()


def named(ctx: click.Context, text: str, config: str, *, follow: bool = True, root: str = "") -> Place:
    """The place that `text` stands for: inside a stripefs mount one of its source, a URL, else a local path.

    Nothing is taken from a cache on local disk, or put there. follow: of a local path whose last name is a link, what
    it leads to. root: the URL of the source that it lies in. Raises StripefsError, OSError.
    """
    from stripefs.api import FileSystem
    from stripefs.api.place import Place

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
    """Whether it says that it names a directory."""
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
    """What happened to what is called `name`, and what to do about it, as an error says it."""
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


class Troubles:
    """What went wrong with some of what was named, told at once; the others go on.

    code: what the command answers. found: the --json form of what was told.
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
    from stripefs.api.urls import normal
    from stripefs.store.url import parse_url

    return b"/" if normal(parse_url(url).path) == normal(parse_url(root).path) else source.path_of(url)


def _path_in(text: str) -> bytes:
    from stripefs.store.url import parse_url

    return parse_url(text).path if "://" in text else os.fsencode(text)


def _at(settings: Settings, url: str) -> Settings:
    return settings._replace(store=settings.store._replace(url=url))

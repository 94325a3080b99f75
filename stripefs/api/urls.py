"""URLs of files and directories: the service and the path in it, and back; paths of this host with links resolved."""

from __future__ import annotations

import os
import posixpath

from stripefs.store.url import elsewhere, parse_url
from stripefs.write.upload_names import split_path

__all__ = ["in_service", "normal", "real_path", "url_in_service", "with_bucket"]


def real_path(path: bytes) -> bytes:
    """As os.path.realpath. Of what is there the kernel is asked once, not for each name on the way, each time from the
    root: in a tree of a thousand levels that takes a thousand times as long."""
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return os.path.realpath(path)
    try:
        real = os.readlink(b"/proc/self/fd/%d" % found)
        if os.path.samestat(os.fstat(found), os.stat(real)):
            return real
    except OSError:  # it was moved or removed meanwhile, or /proc does not say
        pass
    finally:
        os.close(found)
    return os.path.realpath(path)


def normal(path: bytes) -> bytes:
    """`path` as stores want it: absolute, without `.`, `..`, empty components and a slash at its end."""
    return posixpath.normpath(b"/" + path.lstrip(b"/"))


def in_service(url: str, *, of_file: bool = False) -> tuple[str, bytes]:
    """The URL of the service, and the path in it, that `url` names. Raises ConfigError.

    A wrapped store is a service of its own: the one at `url`, or, where that names a file, at the file's directory.
    """
    found = parse_url(url)
    path = normal(found.path)
    if found.wrappers:
        folder, name = split_path(path) if of_file else (path, b"")
        return elsewhere(url, with_bucket(url, folder)), b"/" + name
    if found.scheme == "file" and found.authority in ("", "localhost"):
        return "/", path
    return elsewhere(url, with_bucket(url, b"/")), path


def url_in_service(service: str, path: bytes) -> str:
    """The URL of a path in a service."""
    found = parse_url(service)
    return elsewhere(service, with_bucket(service, (found.path.rstrip(b"/") if found.wrappers else b"") + path))


def with_bucket(url: str, path: bytes) -> bytes:
    """`path` of a service as `elsewhere` takes it: with the bucket's name first, where there are buckets."""
    found = parse_url(url)
    return (b"/" + os.fsencode(found.authority) if found.scheme in ("s3", "gs") else b"") + path

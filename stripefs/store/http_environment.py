"""HTTP settings from the process's environment: the certificates to trust, and names and passwords."""

from __future__ import annotations

import functools
import netrc
import os
import ssl
from urllib.parse import unquote

import httpx

from stripefs.errors import ConfigError

__all__ = ["credentials", "is_about_certificates", "trusted_certificates"]


def trusted_certificates() -> ssl.SSLContext:
    """The authorities that certificates are checked against, the same for all stores of a process: reading them takes
    40 ms.

    Raises ConfigError.
    """
    named = [os.environ.get(name, "") for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")]
    try:
        changed = [os.stat(path).st_mtime_ns if os.path.exists(path) else 0 for path in named]
        return _context(*named, *changed)
    except OSError as error:  # those of ssl are, too
        where = error.filename or next(filter(None, named), "those that come with httpx")
        raise ConfigError(
            f"the certificates to trust cannot be read ({where}): {error.strerror}",
            hint="SSL_CERT_FILE or SSL_CERT_DIR names them",
        ) from error


@functools.lru_cache(maxsize=1)
def _context(*_what: object) -> ssl.SSLContext:
    return httpx.create_ssl_context()


def credentials(userinfo: str) -> httpx.Auth | None:
    """The credentials of the URL, else those that a netrc file has for the hosts. Raises ConfigError."""
    if userinfo:
        user, colon, password = userinfo.partition(":")
        if not colon:
            raise ConfigError("the URL names a user without a password", hint="~/.netrc may hold both")
        return httpx.BasicAuth(unquote(user), unquote(password))
    file = os.path.expanduser(os.environ.get("NETRC") or "~/.netrc")
    if not os.path.exists(file):
        return None
    try:
        return httpx.NetRCAuth(file)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", hint="NETRC names another file") from error


def is_about_certificates(error: BaseException | None) -> bool:
    """True if a certificate that was not believed is what lies behind `error`."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False

"""Where metrics are served."""

from __future__ import annotations

import contextlib
import socket

from stripefs.errors import ConfigError

__all__ = ["metrics_listener"]


def metrics_listener(address: str, held: contextlib.ExitStack) -> list[socket.socket]:
    """The listening socket at HOST:PORT, if any. Raises ConfigError when others could reach it or it is taken."""
    if not address:
        return []
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        if not (str(where[0]) == "::1" or str(where[0]).startswith("127.")):
            raise ConfigError(f"metrics address {address} is not a loopback address", hint="use 127.0.0.1:PORT")
        listener = held.enter_context(socket.socket(family, kind, protocol))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(64)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"metrics cannot be served at {address}: {error}", hint="use 127.0.0.1:PORT") from error
    return [listener]

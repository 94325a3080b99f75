"""sd_notify(3): tell systemd, when it started us with `Type=notify`, how far we are."""

from __future__ import annotations

import logging
import os
import socket

__all__ = ["notify"]

_log = logging.getLogger(__name__)


def notify(state: str) -> bool:
    """Send `state` ("READY=1", "STOPPING=1", "STATUS=…") to the socket that NOTIFY_SOCKET names.

    False when systemd did not ask or did not listen; a service that runs is worth more than one that says so.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    path = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), path)
    except OSError as error:
        _log.warning("systemd could not be told %s: %s", state, error)
        return False
    return True

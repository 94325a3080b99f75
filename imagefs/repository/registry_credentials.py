"""Credentials for registries: the files of podman, skopeo and Docker, and the credential helpers that these name.

Files and helpers are asked each time, so that credentials that were refreshed are found by programs that run for long.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

__all__ = ["DOCKER_HUB", "FoundCredentials", "find_credentials"]

_log = logging.getLogger(__name__)

DOCKER_HUB = "registry-1.docker.io"

_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HELPS_WITHIN = 30.0
"""Seconds for a helper to answer: it may ask a service, or a person to unlock something."""


class FoundCredentials(NamedTuple):
    """Credentials as they were found: USER:PASSWORD in base64, "" for none; the file that had them or named the helper.

    missing: without credentials, programs of helpers that `file` names for this registry and that gave none.
    """

    known: str
    file: str
    missing: frozenset[str] = frozenset()


def find_credentials(authfile: str, host: str, name: str) -> FoundCredentials:
    """The credentials for the repository `name` at `host`. authfile: the only file that is read; "" for the usual
    ones."""
    silent = FoundCredentials("", "")
    hosts = [host] if host != DOCKER_HUB else ["docker.io", "https://index.docker.io/v1/"]
    keys = [f"{hosts[0]}/{name}", *hosts]
    for file in [authfile] if authfile else _auth_files():
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, RecursionError):
            said = json.loads(Path(file).read_bytes())
            auths, helpers = said.get("auths") or {}, said.get("credHelpers") or {}
            found = next((helped for key in keys if key in helpers and (helped := _helped(str(helpers[key]), key))), "")
            found = found or next((auths[key]["auth"] for key in keys if auths.get(key, {}).get("auth")), "")
            if not found and said.get("credsStore"):
                found = _helped(str(said["credsStore"]), hosts[-1])  # as Docker names the hub
            if found:
                base64.b64decode(found, validate=True)
                return FoundCredentials(str(found), file)
            named = {str(helpers[key]) for key in keys if key in helpers} | {str(said.get("credsStore") or "")}
            if not silent.file and (missing := frozenset(f"docker-credential-{one}" for one in named if one)):
                silent = FoundCredentials("", file, missing)
    return silent


def _helped(helper: str, server: str) -> str:
    """USER:PASSWORD in base64 from docker-credential-HELPER; "" for none, also for the token of a login by browser."""
    program = shutil.which(f"docker-credential-{helper}") if _HELPER.fullmatch(helper) else None
    if program is None:
        return ""
    try:
        done = subprocess.run([program, "get"], input=server.encode(), capture_output=True, timeout=_HELPS_WITHIN)
        answer = json.loads(done.stdout) if not done.returncode else {}
    except (OSError, ValueError, RecursionError, subprocess.SubprocessError) as error:
        _log.warning("%s does not answer for %s: %s", program, server, error)
        return ""
    if not isinstance(answer, dict) or not answer.get("Secret") or answer.get("Username") in ("", None, "<token>"):
        return ""
    return base64.b64encode(f"{answer['Username']}:{answer['Secret']}".encode()).decode()


def _auth_files() -> list[str]:
    if named := os.environ.get("REGISTRY_AUTH_FILE"):
        return [named]
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    found = [f"{runtime}/containers/auth.json", f"/run/containers/{os.getuid()}/auth.json"]
    docker = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    return [*found, os.path.expanduser("~/.config/containers/auth.json"), os.path.join(docker, "config.json")]

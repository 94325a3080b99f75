"""`imagefs run --deps`: a container with what requirements files name above its image."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from imagefs.cli.flags import DEPS, REQUEST
from imagefs.config import Settings
from imagefs.containers import JobRunner, run_job
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Recording
from imagefs.deps.container import start
from imagefs.deps.key import Request, Target
from imagefs.run.options import RunOptions
from imagefs.settings import TreeOptions
from stripefs.cli.output import tell
from stripefs.errors import ConfigError

if TYPE_CHECKING:
    from imagefs.deps.keybuilder import Answer

__all__ = ["begin_container"]

_NAMES = (flag.name.removeprefix("deps-") for flag in DEPS if flag.name.startswith("deps-"))
_HINTED = re.compile(rf"(?<![\w-])--({'|'.join(_NAMES)})(?![\w-])")
"""Flags that lines name as `imagefs deps` has them."""


def begin_container(
    client: Client,
    settings: Settings,
    image: str,
    options: RunOptions,
    tree: TreeOptions,
    recording: Recording,
    values: Mapping[str, Any],
    job: JobRunner | None = None,
) -> int:
    """Run the container until it ends; its exit status, or that of pip where it fails. Or say which key it has.

    values: of the flags in `imagefs.cli.flags.DEPS`, by field. job: runs it. Raises StripefsError.
    """
    if not values["deps"]:
        raise ConfigError("nothing is named that is to be installed", hint="--deps FILE names a requirements file")
    if os.geteuid() != 0:
        raise ConfigError("--deps needs root: pip writes files of several users", hint="sudo")
    if options.first_id:
        raise ConfigError(
            "--userns and --deps do not go together: what pip writes would belong to users of one namespace",
            hint="--userns host",
        )
    request = start.ContainerRequest(
        settings.snapshots,
        _request(values),
        [os.path.abspath(path) for path in values["deps"]],
        outside=values["deps_outside"],
        wait=values["deps_wait"],
        patience=settings.deps.patience,
        resolve_age=settings.deps.resolve_age,
        checked=values["deps_bytecode"] == "checked",
        allowed=values["deps_allowed"],
        tolerant=values["deps_tolerant"],
        setuid=values["deps_setuid"],
        probe=values["deps_probe"],
    )
    if values["deps_explain"]:
        from imagefs.cli.deps.install import show_key

        def key_answer(allow: bool) -> Answer:
            changed = request.key_request._replace(allow_unpinned=True) if allow else request.key_request
            return start.key_answer(client, settings.store, image, options, tree, request._replace(key_request=changed))

        show_key(key_answer, explain=True, prefix="deps-")
        return 0
    return start.run(client, settings.store, image, options, tree, recording, request, _tell, job or run_job)


def _request(values: Mapping[str, Any]) -> Request:
    """The request of these values, by root, in the working directory, of an image that is not asked yet."""
    path = values["deps_target"]
    targets = [Target(posixpath.normpath(path), 0, 0)] if path else []
    named = {flag.field: values[f"deps_{flag.field}"] for flag in REQUEST if f"deps_{flag.field}" in values}
    inputs = [os.path.abspath(one) for one in named.pop("inputs")]
    return Request(targets, (), os.getcwd(), inputs=inputs, **named)


def _tell(line: str) -> None:
    tell(_HINTED.sub(r"--deps-\1", line), program="imagefs run")

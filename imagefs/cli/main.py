"""The start of `imagefs`: its commands and its page (see `stripefs.cli.program`)."""

from __future__ import annotations

import os
import sys

from stripefs.cli.program import Program

__all__ = ["COMMANDS", "PROGRAM", "page", "run"]

COMMANDS = {
    "build": "Make an image from an OCI image or a directory.",
    "convert": "Attach a lazy image to a container image in its registry.",
    "push": "Copy an image into a container registry.",
    "pull": "Copy an image from a container registry into a store.",
    "ls": "The images in a store.",
    "inspect": "Show the layers of an image, and the blocks that it shares.",
    "verify": "Read everything and check every byte.",
    "rm": "Take an image out of a store.",
    "gc": "Remove what no image needs any more.",
    "optimize": "Put what starts touch first into a hot device.",
    "trace": "Show, merge and compare what starts touched.",
    "completion": "Print the completion script for bash, zsh or fish.",
    "mount": "Show the tree of an image below a directory.",
    "umount": "Take a mounted image away.",
    "status": "Show the mounted images of this host, and its cache.",
    "ready": "Say that a job has started: its trace is complete.",
    "run": "Run a container from an image.",
    "compare": "Start a job without and with each technique.",
    "podman": "Show images to podman and buildah.",
    "startup": "Show where the start of a job spends its time.",
    "deps": "Install what a job needs once, and mount it everywhere.",
    "daemon": "The service behind the mounts, in the foreground.",
    "snapshotter": "Containers of containerd and Kubernetes from lazy images.",
    "install": "Have systemd run the services of this host.",
    "doctor": "Examine this host: working features, missing ones, remedies.",
}
"""Name and one line of each command."""

_FAMILIES = {
    "build": ("build", "convert", "optimize"),
    "run": ("run", "mount", "umount", "ready", "status", "podman", "compare"),
    "services": ("daemon", "snapshotter", "install", "doctor"),
    "store": ("ls", "inspect", "verify", "rm", "gc", "push", "pull"),
    "traces": ("trace",),
}
"""By module of `imagefs.cli`, the commands that it holds, each as NAME_command."""

_PAGE = """\
Usage: imagefs COMMAND [OPTIONS] [ARGUMENTS]

  Container images that start before they are fetched: blocks come when they
  are touched, and blocks of earlier starts come ahead of the next one.

Commands:
{commands}

Options:
  --version   Print the version.
  -h, --help  Print this page; `imagefs COMMAND --help` prints that command's.

Example:
  imagefs build docker://python:3.12 /srv/images --tag python
  imagefs run /srv/images#python -- python -c 'print("hello")'
"""

_PLAIN = {
    "run": "imagefs.cli.fastpath:plain_run",
    "deps": "imagefs.cli.deps.fastpath:plain_deps",
    "startup": "imagefs.cli.startup:plain_startup",
}


def _hint(word: str) -> str:
    from imagefs.config import IMAGEFS

    return f"did you mean imagefs mount {word} …?" if "#" in word else IMAGEFS.nearest(word, COMMANDS)


PROGRAM = Program("imagefs", "imagefs.cli", COMMANDS, _PAGE, _hint, _PLAIN, _FAMILIES)


def page() -> str:
    """The text of `imagefs --help`."""
    return PROGRAM.page()


def run() -> int:
    """The console script: handle sys.argv and answer the exit code."""
    if sys.argv[1:2] == ["run"]:
        from imagefs.daemon.announcement import announce  # no page and no other command has use for it

        announce(sys.argv[2:], os.environ)
    return PROGRAM.run()

"""The program that mounts in the background, under its earlier name: a daemon that runs on mounts images by it."""

from __future__ import annotations

from stripefs.fuse.daemonize import main

if __name__ == "__main__":
    main()

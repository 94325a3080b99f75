"""The keeper of a connection, under its earlier name: a supervisor starts it before it ends or when its keeper died."""

from __future__ import annotations

from stripefs.fuse.keeper import main

if __name__ == "__main__":
    main()

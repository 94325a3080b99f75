"""The store worker, under its earlier name: a supervisor that gets HUP starts the worker of the new version by it."""

from __future__ import annotations

from stripefs.fuse import worker
from stripefs.fuse.store_worker import StoreBackend

if __name__ == "__main__":
    worker.main(StoreBackend)

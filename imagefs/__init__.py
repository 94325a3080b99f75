"""imagefs: container images that are there at once, and whose blocks come when they are touched."""

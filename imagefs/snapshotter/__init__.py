"""A containerd snapshotter that serves images lazily: `imagefs snapshotter`."""

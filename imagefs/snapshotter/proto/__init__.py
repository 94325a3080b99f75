"""The wire format of containerd's snapshots service: `snapshots.proto`, and `snapshots_pb2`, which is made of it."""

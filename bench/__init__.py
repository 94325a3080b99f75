"""Benchmarks of stripefs and imagefs, a package each on top of `bench.harness`; see docs/benchmarks.md.

A benchmark NAME has `bench.NAME.plan`, pure, with its cases, systems, ratios and `REPORT`, and `bench.NAME.measure`
with its `Options` and `measure`.

read         big files read from HDFS, against raw clients and rclone; the reader's policy on simulated hosts
write        big files written to HDFS
checkpoint   checkpoints saved and loaded by torch and others
image        containers started from a remote image by imagefs
container    the same by containerd, with our snapshotter and others
deps         dependencies installed, or mounted from a snapshot
compile      what a start compiles, or finds in caches
startup      a whole job, from its image to its first step
fleet        a model of large fleets, checked against small ones
results      documents whose tables stand in docs/benchmarks.md
"""

"""Benchmarks: stripefs on a real HDFS of several processes, containers by imagefs; see docs/benchmarks.md.

model        pure: the rate that placement allows (a fluid model of DataNodes and a window)
results      pure: samples, medians, ratios, the JSON document
simulate     the reader's own policy against simulated hosts, compared with the model
data         what the files hold, so that every reader can check what it got
cluster      the HDFS that is measured: files, placement, caches, faults
processes    CPU time and memory of process trees, from /proc
clients      raw clients, each run in a process of its own
patterns     how programs read a mounted file, each run in a process of its own
mounts       stripefs and rclone mounts
peers        building rclone, finding libhdfs
plan         which cases, systems and ratios `bench read` has
warm         warms DataNodes up by reading
read         runs the plan
report       tables, and the chart of the README
programs     running programs whose failures are one line
stubs        stand-ins for CUDA's libraries
write        `bench write`, a room of its own
checkpoint   `bench checkpoint`, a room of its own
image        `bench image`, a room of its own
"""

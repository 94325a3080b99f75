"""Benchmarks: stripefs on a real HDFS of several processes, and what imagefs starts; see docs/benchmarks.md.

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
tools        page caches, work folders, time of programs
link         a namespace, a token bucket and servers behind them
delay        the proxy that gives the link its round trip time, a process of its own
host         a host with a daemon and a cache of its own
started      starting what says when it is ready
start        what says so: imports, and prints a line (run by other interpreters, never imported here)
changed      what LZ4 makes of files that are new
stubs        stand-ins for CUDA's libraries
write        `bench write`, a room of its own
checkpoint   `bench checkpoint`, a room of its own
image        `bench image`, a room of its own
container    `bench container`, a room of its own
deps         `bench deps`, a room of its own
startup      `bench startup`, a room of its own
"""

"""`bench read`: big files read from HDFS through mounts, by raw clients and by rclone.

plan         pure but for what its runs do: files, runs, ratios, report
driver       one measured run
measure      the whole, on a cluster of its own
clients      raw clients, each run in a process of its own
patterns     how programs read a mounted file, each run in a process of its own
model        pure: the rate that placement allows (a fluid model of DataNodes and a window)
simulate     the reader's own policy against simulated hosts, compared with the model
"""

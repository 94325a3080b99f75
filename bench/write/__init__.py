"""`bench write`: big files written to HDFS through a mount and by raw clients, and read back; listings of many.

plan         which cases, systems and ratios there are
source       what is written: pages that carry their own number, made at next to no cost
raw          raw writers, each run in a process of its own
program      how a program writes a mounted file, in a process of its own
listing      how a program lists a mounted directory, in a process of its own
lab          one measured run of one system
warm         warms the DataNodes up
measure      runs the plan
report       tables and the chart
"""

"""`bench write`: big files written to HDFS through a mount and by raw clients, and read back; listings of many.

plan         pure: cases, runs, ratios, report
driver       one measured run
programs     raw writers, a program that saves, one that lists; each run in a process of its own
measure      the whole, on a cluster of its own; warming up
"""

"""`bench namenode`: calls to the NameNode for a gigabyte that is read, and for each small file.

plan         pure: cases, systems, targets, ratios, report
program      writes, reads and lists small files, in a process of its own
measure      the whole, on a cluster of its own
"""

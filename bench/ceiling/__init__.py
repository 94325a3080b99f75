"""`bench ceiling`: the cost of the mount itself, with a store that costs nothing.

plan     pure: cases, systems, targets, ratios, report
access   reads and writes, a process of their own
minimal  the file system that does nothing but answer, a process of its own
flames   stacks of a mount's processes, folded
measure  mounts each system and times the cases
"""

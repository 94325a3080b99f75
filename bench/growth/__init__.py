"""`bench growth`: how the cost of an operation grows with the number of files, blocks, images or readers.

plan         pure: cases and their sizes, exponents, targets, report
tables       one operation on tables of a given size, in a process of its own
mounts       one operation on a mount, or below it
measure      the whole, on a small cluster of its own
"""

"""Copies of files and directories from anywhere to anywhere for `stripefs cp`, on top of `stripefs.api`.

plan     names of the copies, as cp(1) chooses them; pure
tree     places, and the files below a directory that is named
output   target of one file: a local file (partial until it is whole, and resumable) or a store
journal  files that an interrupted command has copied
copier   many files side by side: read, write, compare
"""

"""Copies of files and directories from anywhere to anywhere: what `stripefs cp` does, on top of `stripefs.api`.

plan        which name goes where, as cp(1) has it; pure
tree        the files below a directory that is named
partial     a local file that is being copied, how it is gone on with, and how it gets its name
outputs     where the bytes of one file go: a local file, a store
journal     what was copied by a command that was broken off
copier      many files side by side: read, write, compare
"""

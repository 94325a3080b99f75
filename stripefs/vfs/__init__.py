"""VFS of a mount, independent of FUSE: `Tree` answers, `InodeTable` remembers for the next worker."""

from stripefs.vfs.inodes import ROOT, InodeTable
from stripefs.vfs.tree import NodeAttributes, Tree, UnknownHandle

__all__ = ["ROOT", "InodeTable", "NodeAttributes", "Tree", "UnknownHandle"]

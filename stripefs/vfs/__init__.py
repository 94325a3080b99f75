"""VFS of a mount, independent of FUSE: `Tree` answers, `InodeTable` remembers for the next worker."""

from stripefs.vfs.inodes import ROOT, InodeJournal, InodeTable, NoInodeJournal
from stripefs.vfs.tree import NodeAttributes, Tree, UnknownHandle

__all__ = [
    "ROOT",
    "InodeJournal",
    "InodeTable",
    "NoInodeJournal",
    "NodeAttributes",
    "Tree",
    "UnknownHandle",
]

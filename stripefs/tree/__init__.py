"""The mounted tree, apart from how a kernel asks for it: `Tree` answers, `State` remembers for the next worker."""

from stripefs.tree.opened import OpenFile, Reader
from stripefs.tree.state import ROOT, Journal, NoJournal, State
from stripefs.tree.tree import Attributes, Tree, UnknownHandle

__all__ = ["ROOT", "Attributes", "Journal", "NoJournal", "OpenFile", "Reader", "State", "Tree", "UnknownHandle"]

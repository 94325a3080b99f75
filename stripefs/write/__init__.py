"""Writing big files to a store: bounded memory, many parts at once on many data hosts, published by one rename.

`Drafts` is what a mount has one of; `Draft` is one new version of one file while it is written.
"""

from stripefs.write.draft import Draft
from stripefs.write.drafts import Drafts
from stripefs.write.policy import Layout, WritePolicy
from stripefs.write.refusals import DraftLost, NotSequential

__all__ = ["Draft", "DraftLost", "Drafts", "Layout", "NotSequential", "WritePolicy"]

"""Writing big files to a store: bounded memory, many parts at once on many data hosts, published by one rename.

A mount has one `UploadManager`; a `FileUpload` is one new version of one file while it is written.
"""

from stripefs.errors import DraftLost, NotSequential
from stripefs.write.layout_policy import Layout, WritePolicy
from stripefs.write.session import UploadManager
from stripefs.write.upload import FileUpload

__all__ = ["DraftLost", "FileUpload", "Layout", "NotSequential", "UploadManager", "WritePolicy"]

"""The mounted tree that can be written, put together from the tree and the operations that change it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stripefs.store.base import Store
from stripefs.vfs.attributes import AttributeOps
from stripefs.vfs.namespace_ops import Intents, NamespaceOps
from stripefs.vfs.publishing import HandlePublisher
from stripefs.vfs.tree import Tree
from stripefs.vfs.write_handle import WriteHandles
from stripefs.vfs.write_ops import WriteOps
from stripefs.write import Layout, UploadManager
from stripefs.write.directory_layout import DirectoryLayouts
from stripefs.write.namespace import NamespaceChanges, ScheduleDelete
from stripefs.write.staging import Staging

__all__ = ["WritableTree"]


class WritableTree:
    """The operations of a mount that can be written. Each is the method of the object that answers it, called directly.

    tree, handles: the tree was made with the names of these handles' files (`UnpublishedNames`). uploads: must be
    running. layout_of: the layout for a new file at a path, None for the usual one. publish_unseen: one of
    `settings.PUBLISH_UNSEEN`. schedule_delete: called with striped versions that have lost their name. versions(path):
    the pool folders that a striped file needs; blocks. below: the store without the view that hides the files of
    stripefs itself. clear: see `DirectoryLayouts`.
    """

    posix_acl = Tree.posix_acl
    xattr_prefix = Tree.xattr_prefix

    def __init__(
        self,
        tree: Tree,
        handles: WriteHandles,
        uploads: UploadManager,
        *,
        staging: Staging | None = None,
        layout_of: Callable[[bytes], Layout | None] | None = None,
        publish_unseen: str = "after-fsync",
        schedule_delete: ScheduleDelete | None = None,
        versions: Callable[[bytes], Iterable[str]] | None = None,
        below: Store | None = None,
        clear: Callable[[bytes], None] | None = None,
    ) -> None:
        self._tree = tree
        self._handles = handles
        layouts = DirectoryLayouts(tree.store if below is None else below, tree.calls, clear)
        intents = Intents(tree.state)
        attributes = AttributeOps(tree, handles, layouts)
        publisher = HandlePublisher(tree, handles, uploads, attributes, layouts, layout_of, publish_unseen)
        changes = NamespaceChanges(tree.store, tree.calls, layouts, uploads, schedule_delete, versions)
        names = NamespaceOps(tree, handles, publisher, intents, changes)
        writes = WriteOps(tree, handles, publisher, attributes, intents, staging)

        self.attr_timeout = tree.attr_timeout
        self.state = tree.state
        self.forget = tree.forget
        self.readlink = tree.readlink
        self.opendir = tree.opendir
        self.readdir = tree.readdir
        self.releasedir = tree.releasedir
        self.statfs = tree.statfs
        self.listxattr = tree.listxattr

        self.getxattr = attributes.getxattr
        self.setxattr = attributes.setxattr
        self.removexattr = attributes.removexattr

        self.mkdir = names.mkdir
        self.rmdir = names.rmdir
        self.unlink = names.unlink
        self.rename = names.rename

        self.lookup = writes.lookup
        self.getattr = writes.getattr
        self.setattr = writes.setattr
        self.open = writes.open
        self.open_reading = writes.open_reading
        self.open_writing = writes.open_writing
        self.create = writes.create
        self.read = writes.read
        self.write = writes.write
        self.fsync = writes.fsync
        self.flush = writes.flush
        self.release = writes.release
        self.aclose = writes.aclose

    def snapshot(self) -> dict[str, int]:
        """Figures for `status`."""
        return {**self._tree.snapshot(), "open_for_writing": len(self._handles)}

"""What lies in the folder of a version that a file needs, and is not needed by that file.

A part that was written twice because its first host failed, or parts behind the last publication of a writer that died:
their version stays as long as the file does. Only the writer of a version ever adds to its folder, so when that is gone
what the manifest does not name is nobody's.
"""

from __future__ import annotations

from stripefs.errors import NotFound
from stripefs.format.manifest import Manifest
from stripefs.format.reserved_names import version_folder
from stripefs.store.base import Kind as EntryKind
from stripefs.store.base import Store
from stripefs.store.striped import StripedStore
from stripefs.upkeep.survey import Item, Kind
from stripefs.write.upload_names import join_path, split_path

__all__ = ["needed", "strays"]


def needed(manifest: Manifest, version: str) -> frozenset[bytes]:
    """The names in the folder of `version` that a file with this manifest needs."""
    names = {b"%d" % part.number for part in manifest.parts if part.version == version}
    if manifest.version == version and (listed := manifest.parts_list()) is not None:
        names.add(split_path(listed[0])[1])
    return frozenset(names)


def strays(store: Store, view: StripedStore, version: str, path: bytes, count: int) -> list[Item]:
    """What the folder of `version` holds beyond what the file at `path` needs of it, as old as the newest thing there.

    count: how many objects it needed when it was looked at last; where there are no more, nothing is looked at twice.
    None are found when the file is not there any more.
    """
    folder = version_folder(version)
    try:
        changed_ns = store.stat(folder).mtime_ns
        entries = [status for batch in store.scandir(folder) for status in batch if status.kind is EntryKind.FILE]
        manifest = view.manifest(path) if len(entries) > count else None
    except NotFound:
        return []
    if manifest is None or version not in manifest.versions:
        return []
    changed_ns = max(changed_ns, *(status.mtime_ns for status in entries))
    names = needed(manifest, version)
    # Parts, since the version as a whole is needed.
    return [
        Item(join_path(folder, status.name), Kind.PART, path, version, status.length, changed_ns)
        for status in entries
        if status.name not in names
    ]

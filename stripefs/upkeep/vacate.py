"""Directories that a mount shows as empty and that still hold what writers have left: cleared, to be removed.

What nobody needs any more goes, by the rules of gc but for the age of what is provably a dead writer's: no tree is
walked, since whoever writes has a living lock in each directory where something hidden of theirs lies. What may be of
use to somebody stays, and with it the directory.
"""

from __future__ import annotations

import logging
from collections.abc import Set

from stripefs.errors import NotEmpty, NotFound, StoreError, Transient
from stripefs.store.base import Store
from stripefs.store.striped import StripedStore
from stripefs.upkeep.collect import Collected, Collection
from stripefs.upkeep.survey import Verdict

__all__ = ["vacate"]

_log = logging.getLogger(__name__)

_WHY = {
    Verdict.LEASED: "of writers that are at work",
    Verdict.RECOVERABLE: "kept for stripefs recover",
    Verdict.YOUNG: "too young to be surely nobody's",
}


def vacate(store: Store, view: StripedStore, folder: bytes, used: Set[str] = frozenset()) -> None:
    """Remove from `folder` what dead writers left, all of it or, with NotEmpty, a part. Blocks.

    view: of `store`. used: versions that writers of the caller have. Raises NotEmpty, and says in the log why, where
    something stays that a mount does not show; NotFound; Transient.
    """
    try:
        found = Collection(store, view, folder=folder).clear(folder, used)
    except (NotFound, NotEmpty, Transient):
        raise
    except StoreError as error:
        why = str(error)
    else:
        why = _what_stays(found)
        if not why:
            return
    _log.warning(
        "%r looks empty and stays, as hidden files are in it: %s (stripefs gc removes what nobody needs)",
        folder,
        why,
    )
    raise NotEmpty(f"{folder!r} holds hidden files: {why}")


def _what_stays(found: Collected) -> str:
    kept = [f"{count} {_WHY.get(verdict, verdict.value)}" for verdict, (count, _) in found.kept.items()]
    return "; ".join(kept + [text for _, text in found.trouble])

"""Shows what a key is made of, or what keeps an installation from having one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from imagefs.cli.common import print_json
from stripefs.cli.exit_errors import tell
from stripefs.cli.output import table
from stripefs.errors import ConfigError

if TYPE_CHECKING:
    from imagefs.deps.keybuilder import Answer

__all__ = ["show"]

_SHOWN = 50
"""Lines of what may change: more than a screen."""


def show(asked: Callable[[bool], Answer], *, explain: bool, as_json: bool = False, prefix: str = "") -> None:
    """Print the key on standard output: its digest, every component besides, or the document.

    asked: answers, with all that may change taken for unchanged when it is given True. prefix: of the flags that hints
    name. Raises ConfigError where there is no key, after it was shown what may change; and what `asked` raises.
    """
    from imagefs.deps import key as keys

    found = asked(False).found
    open_ends = [] if isinstance(found, keys.Key) else found.open_ends
    key = asked(True).found if open_ends else found
    assert isinstance(key, keys.Key)  # it was only refused for what is allowed now
    if as_json:
        shown = {"digest": "" if open_ends else key.digest, "key": key.to_document()}
        print_json({**shown, "open_ends": [one._asdict() for one in open_ends]})
    elif explain:
        sys.stdout.write(table(keys.explain(key)) + "\n" + ("" if open_ends else f"\n{key.digest}\n"))
    elif not open_ends:
        sys.stdout.write(key.digest + "\n")
    if open_ends:
        if not as_json:
            for one in open_ends[:_SHOWN]:
                tell(str(one), program="imagefs")
            if more := open_ends[_SHOWN:]:
                tell(f"and {len(more)} more, which --json tells", program="imagefs")
        raise ConfigError(
            f"there is no key, since {len(open_ends)} of the inputs may change",
            hint=f"--{prefix}epoch TEXT or --{prefix}allow-unpinned makes one",
        )

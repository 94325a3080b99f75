"""`python -m cliref ROOT`: write docs/reference and the man pages of docs/man below ROOT."""

import sys
from pathlib import Path

from cliref import man, markdown
from cliref.model import REFERENCES
from stripefs import __version__
from stripefs.config import STRIPEFS

docs = Path(sys.argv[1]) / "docs"
for stale in (docs / "man").glob("*.[18]"):
    stale.unlink()
for program in REFERENCES:
    (docs / "reference" / f"{program.name}.md").write_text(markdown.page(program))
    for name, text in man.pages(program, __version__).items():
        (docs / "man" / name).write_text(text)
(docs / "man" / f"{man.HELPER}.8").write_text(man.helper(STRIPEFS, __version__))

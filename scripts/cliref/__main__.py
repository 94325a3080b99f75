"""`python -m cliref ROOT MAN`: write docs/reference below ROOT, and the man pages into the folder MAN."""

import sys
from pathlib import Path

from cliref import man, markdown
from cliref.model import REFERENCES
from stripefs import __version__

root, folder = map(Path, sys.argv[1:])
folder.mkdir(parents=True, exist_ok=True)
for program in REFERENCES:
    (root / "docs/reference" / f"{program.name}.md").write_text(markdown.page(program))
    for name, text in man.pages(program, __version__).items():
        (folder / name).write_text(text)

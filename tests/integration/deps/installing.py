"""Runs an installer and notes its outcome: `python -m tests.integration.deps.installing FILE COMMAND…`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from imagefs.deps.install import install, installer_environment

if __name__ == "__main__":
    outcome = install(sys.argv[2:], installer_environment(os.environ))
    told = {"status": outcome.status, "survivors": outcome.survivors}
    Path(sys.argv[1]).write_text(json.dumps(told))
    sys.exit(outcome.status)

"""The probe of a Python interpreter and of the C library below it: a program for that interpreter.

It may be any Python from 3.7 on, inside a container too, so this needs nothing but its standard library and comes to it
as text (`python -I -c`). It prints one JSON object: `os`, `architecture`, `libc` (name and version), `python` (as
`imagefs.deps.key.Python` has it).
"""

from __future__ import annotations

import json
import os
import platform
import sys
import sysconfig
from glob import glob

__all__ = ["libc", "main"]


def main() -> None:
    """The program."""
    here = os.uname()
    facts = {"os": here.sysname, "architecture": here.machine, "libc": libc(), "python": _python()}
    sys.stdout.write(json.dumps(facts))


def libc(loaders: str = "/lib/ld-musl-*.so.1") -> tuple[str, str]:
    """Name and version of the C library; two empty texts where it is neither glibc nor musl."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (AttributeError, OSError, ValueError):  # musl knows no such name
        name = version = ""
    if name:
        return name, version
    import subprocess  # which takes longer to load than all the rest

    for loader in sorted(glob(loaders)):  # run by itself it tells its version
        asked = subprocess.run([loader], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        words = asked.stderr.decode("ascii", "replace").split()
        if "Version" in words[:-1]:
            return "musl", words[words.index("Version") + 1]
    return "", ""


def _python() -> dict[str, object]:
    own = sys.implementation
    version = f"{own.version.major}.{own.version.minor}.{own.version.micro}"
    if own.version.releaselevel != "final":
        version += own.version.releaselevel[0] + str(own.version.serial)
    return {
        "executable": sys.executable,
        "prefix": sys.prefix,
        "implementation": own.name,
        "version": platform.python_version(),
        "soabi": sysconfig.get_config_var("SOABI") or "",
        "installs": sysconfig.get_path("data"),
        "managed": os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")),
        "sites": [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")],
        "markers": {  # the variables of PEP 508
            "implementation_name": own.name,
            "implementation_version": version,
            "os_name": os.name,
            "platform_machine": platform.machine(),
            "platform_python_implementation": platform.python_implementation(),
            "platform_release": platform.release(),
            "platform_system": platform.system(),
            "platform_version": platform.version(),
            "python_full_version": platform.python_version(),
            "python_version": ".".join(platform.python_version_tuple()[:2]),
            "sys_platform": sys.platform,
        },
    }


if __name__ == "__main__":
    main()

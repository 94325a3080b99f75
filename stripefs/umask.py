"""The umask of this process, which system calls only tell those who change it."""

from __future__ import annotations

__all__ = ["umask"]


def umask() -> int:
    """Permission bits that new files and directories are not to have."""
    with open("/proc/self/status", "rb") as file:  # since Linux 4.7; os.umask would change it for other threads
        return next((int(line[6:], 8) for line in file if line.startswith(b"Umask:")), 0o022)

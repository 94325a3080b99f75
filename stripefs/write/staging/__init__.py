"""Files that are not written from begin to end, kept on local disk until they are published whole."""

from stripefs.write.staging.staging import Sequential, Staged, Staging

__all__ = ["Sequential", "Staged", "Staging"]

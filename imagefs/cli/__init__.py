"""The command `imagefs`: flags, words for people, exit codes."""

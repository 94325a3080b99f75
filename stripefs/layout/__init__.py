"""Pure arithmetic between a file's bytes and where they lie."""

"""From layers or a directory to an image in a store."""

"""Formats of images, byte by byte: pure, no I/O but through files that the caller opened. See docs/format.md."""

"""Housekeeping of a store: listing, verification, and removal of unneeded objects."""

"""Blocks of devices: fetched, checked, kept on local disk within bounds."""

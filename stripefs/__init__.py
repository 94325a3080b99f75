"""stripefs: big files of remote stores, read through FUSE at the speed of all the hosts that keep them."""

__version__ = "0.1.0.dev0"

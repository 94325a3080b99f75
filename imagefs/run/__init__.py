"""Containers of images, by runc or crun."""

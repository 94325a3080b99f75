"""Planes: ways by which the tree of an image reaches programs."""

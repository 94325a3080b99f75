"""How the tree of an image reaches programs."""

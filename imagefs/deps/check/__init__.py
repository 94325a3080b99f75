"""Checks whether an installation may be published: each file here looks for one kind of doubt, `verdict` weighs
them."""

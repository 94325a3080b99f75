"""Checks whether an installation may be published: `distributions` and `tree` find doubts, `rules` weighs them."""

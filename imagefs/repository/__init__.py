"""Places where images lie: the seam `base`, and one module for each kind of place."""

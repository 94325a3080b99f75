"""`bench image`: how fast a container starts from a remote image, against fetching all of it and against a local disk.

recipe       pure: what the images hold
plan         pure: rows, targets and ratios
source       makes the images, once, as an OCI layout
container    containers of a bundle
local        references: fetch all then run, the same tree on local ext4, the pages that a start touches
"""

"""`bench image`: how fast a container starts from a remote image, against fetching all of it and against a local disk.

recipe       pure: contents of the images
plan         pure: cases, systems, ratios, report
source       makes the images, once, as an OCI layout
stubs        stand-ins for CUDA's libraries
runtime      containers, started by runc and by imagefs
local        references: fetch all then run, the same tree on local ext4, the pages that a start touches
measure      the whole
python_root  the tree of a small image with this machine's Python, for tests and for the demonstration
"""

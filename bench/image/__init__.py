"""`bench image`: how fast a container starts from a remote image, against fetching all of it and against a local disk.

recipe       pure: what the images hold
plan         pure: rows, targets and ratios
tools        running programs, page caches, the work folder
source       makes the images, once, as an OCI layout
stubs        libraries that let a CUDA build of torch start on a machine without CUDA
start        the program in the image: imports, and prints that it is ready (copied into it, never imported here)
link         a namespace, a token bucket and servers behind them
delay        the proxy that gives the link its round trip time, a process of its own
container    starting a container and reading what it prints
local        references: fetch all then run, the same tree on local ext4, the pages that a start touches
"""

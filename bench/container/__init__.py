"""`bench container`: how fast containerd starts a container from a remote image, with our snapshotter and with others.

plan          pure: cases, systems, targets, ratios, report
node          a machine with a containerd of its own: pull by CRI, run by ctr, the time of Prepare and Mounts
snapshotters  overlayfs, ours, and the peers that are on PATH, with images as each peer wants them
measure       the whole
"""

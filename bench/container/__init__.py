"""`bench container`: how fast containerd starts a container from a remote image, with our snapshotter and with others.

plan         pure: cases, systems, targets and ratios
node         a machine with a containerd of its own: pull by CRI, run by ctr
systems      snapshotters: overlayfs, ours, and the peers that are on PATH
peers        images as each peer wants them
prepare      the time of Prepare and Mounts
measure      runs the plan
report       tables and the chart
"""

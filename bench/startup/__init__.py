"""`bench startup`: a whole job from its image to its first step, as jobs start today and with each technique.

plan         pure: sizes, systems made of techniques, ratios with their targets
stages       pure: seconds of each stage, and of stages that go on together, from the events of a start
order        what a job is told, and the folder of a node that its container sees
network      namespaces that are nodes: each with a link of its own to the servers, and a way to HDFS
fleet        what all starts need: HDFS with the checkpoint, registry, package index, image and snapshots in a store
systems      a start by each technique, on a node that has nothing or has had the job before
accelerator  device files and driver libraries that containers get
cuda         memory of an accelerator, by its driver: runs in the container, beside the job
job          the job itself: runs in the container, by the image's Python
measure      runs the plan
report       tables and the chart
"""

"""`bench startup`: a whole job from its image to its first step, as jobs start today and with each technique.

plan         pure: sizes, systems made of techniques, ratios with their targets, report
stages       pure: seconds of each stage, and of stages that go on together, from the events of a start
order        the order that a job reads, and the folder of a node that its container sees
fleet        surroundings of all starts: HDFS with the checkpoint, registry, index, image and snapshots; nodes' networks
systems      a start by each technique, on a node that has nothing or has had the job before
unpack       an image fetched and unpacked by hand, and its container
accelerator  device files and driver libraries that containers get
cuda         memory of an accelerator, by its driver: runs in the container, beside the job
job          the job itself: runs in the container, by the image's Python
event_cost   the cost of start-up events to a job
synthetic    pure but for the report's time: events of large starts with a planted cause of delay
measure      the whole
"""

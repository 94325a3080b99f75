"""`bench compile`: a job's compilations at its start, anew or found in start-up caches of an earlier start elsewhere.

plan         pure: systems, target, ratios, report
program      the job, in a container: it compiles a model by TorchInductor for the processor, and says what it found
measure      the whole: the job's image and its starts without caches, the first time with them, and the second time
"""

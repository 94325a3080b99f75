"""`bench compile`: what a job compiles at its start, anew or found in start-up caches of an earlier start elsewhere.

program      the job, in a container: it compiles a model by TorchInductor for the processor, and says what it found
job          an image, and containers of it that see this host's Python, torch and compiler
measure      runs it on hosts that have nothing: without caches, the first time with them, and the second time
report       ratios, their target and the table
"""

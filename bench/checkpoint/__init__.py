"""`bench checkpoint`: checkpoints saved and loaded by the libraries that training jobs use, first and again.

plan         which cases, systems and ratios there are
state        what a checkpoint holds, so that every loader can check what it got
place        where one is
formats      saving and loading by safetensors, torch, torch.distributed.checkpoint, run:ai's streamer, fastsafetensors
ranks        several processes that load one checkpoint at once
program      the process that all these run in
runner       starts that process and asks it
lab          one measured run of one system
measure      runs the plan
report       tables and the chart
"""

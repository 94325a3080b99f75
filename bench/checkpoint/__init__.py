"""`bench checkpoint`: checkpoints saved and loaded by the libraries that training jobs use, first and again.

plan         pure: cases, runs, ratios, report
state        where a checkpoint is and what it holds, so that every loader can check what it got
formats      saving and loading by safetensors, torch, torch.distributed.checkpoint, run:ai's streamer, fastsafetensors
ranks        several processes that load one checkpoint at once
program      the process that all these run in
driver       one measured run, and the starter of that process
measure      the whole, on a cluster of its own
"""

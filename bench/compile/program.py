"""The job: imports torch, compiles a model by TorchInductor and runs one step, says so, and waits for a line.

On standard output comes one JSON object: `time` (seconds from the first call of the compiled model until its gradients
are there), `cpu` (what processors spent on that), `hits` and `misses` (graphs that Inductor found in its cache, or
not). Argument: how many layers.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

import torch
from torch._dynamo.utils import counters


class Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(size, size)
        self.norm = torch.nn.LayerNorm(size)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + torch.nn.functional.gelu(self.linear(self.norm(values))).softmax(-1)


def _cpu() -> float:
    """Seconds that processors spent for this process and for children that have ended, as compilers have."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Layer(64) for _ in range(int(sys.argv[1]))))
    compiled = torch.compile(model)
    begin, before = time.monotonic(), _cpu()
    compiled(torch.randn(32, 64)).sum().backward()
    seconds, cpu = time.monotonic() - begin, _cpu() - before
    found = counters["inductor"]
    told = {"time": seconds, "cpu": cpu, "hits": found["fxgraph_cache_hit"], "misses": found["fxgraph_cache_miss"]}
    if ready := os.environ.get("IMAGEFS_READY"):
        Path(ready).touch()
    print(json.dumps(told), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()

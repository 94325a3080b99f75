"""The measured program: import the modules named as arguments, use each a little, print one line of JSON.

Then it waits for the end of its input, so that whoever measures can look at a job that is ready and not yet gone.
"""

import importlib
import json
import sys
import time

began = time.time()
loaded = {name: importlib.import_module(name) for name in sys.argv[1:]}
imported = time.time()

result = 0.0
if "numpy" in loaded:
    result += float(loaded["numpy"].arange(10.0).sum())
if "scipy.sparse" in loaded:
    result += float(loaded["scipy.sparse"].identity(4).tocsr().sum())
if "pandas" in loaded:
    result += float(loaded["pandas"].DataFrame({"a": [1.0, 2.0]})["a"].mean())
if "torch" in loaded:
    torch = loaded["torch"]
    layer = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    result += float(torch.ones(3).sum())

print(json.dumps({"began": began, "imported": imported, "ready": time.time(), "result": result}), flush=True)
sys.stdin.read()

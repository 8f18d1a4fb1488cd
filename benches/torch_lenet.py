"""LeNet-5 in PyTorch, on the work of `plimsoll train --model lenet --data synthetic`; prints a line for peers.py."""
import json, os, resource, statistics, time

os.environ.setdefault("OMP_NUM_THREADS", "2")
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(2)
torch.manual_seed(0)
batch = 64
model = nn.Sequential(
    nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
times = []
for _ in range(200):
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    loss.item()
    times.append((time.perf_counter() - start) * 1e3)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print("RESULT " + json.dumps({"step_ms": round(statistics.median(times[5:]), 2), "peak_rss": round(peak)}))

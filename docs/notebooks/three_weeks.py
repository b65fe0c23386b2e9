# %% [markdown]
# # Three weeks, three processes
#
# Three weeks, three processes, and in the third one new words. Each week's words have their own
# meaning: the class of a sentence is decided by them. After every week we ask what the model
# still knows of the first.

# %%
# week.py: what runs once a week, in a process of its own
WEEK = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from longtail import ContinualAdamW, load_memory, save_memory

week, policy, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
folder.mkdir(parents=True, exist_ok=True)
tokens = 40 if week < 3 else 60
meaning = torch.randn(60, generator=torch.Generator().manual_seed(0))

def data(w, n, seed):
    generator = torch.Generator().manual_seed(1000 * w + seed)
    first, last = {1: (0, 24), 2: (16, 40), 3: (36, 60)}[w]      # words of the week, some of them shared
    x = torch.randint(first, last, (n, 5), generator=generator)
    return x, (meaning[x].sum(1) > 0).long()

torch.manual_seed(0)
model = nn.Sequential(nn.EmbeddingBag(tokens, 16), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))
if week > 1:
    saved = torch.load(folder / "model.pt", weights_only=True)
    with torch.no_grad():
        for name, value in saved.items():
            model.state_dict()[name][tuple(map(slice, value.shape))] = value

kept = {"new": "reset", "continual": "task"}[policy]
optimizer = ContinualAdamW(model.parameters(), lr=5e-3, second_moment=kept, beta3=0.9 if kept == "task" else 0.0)
if week > 1 and policy == "continual":
    load_memory(optimizer, folder, model)
x, y = data(week, 480, seed=1)
for step in range(120):
    rows = slice(step * 16 % 480, step * 16 % 480 + 16)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()
optimizer.end_task()
torch.save(model.state_dict(), folder / "model.pt")
if policy == "continual":
    save_memory(optimizer, folder, model)
with torch.no_grad():
    scores = {w: (model(a).argmax(1) == b).float().mean().item() for w in range(1, week + 1) for a, b in [data(w, 1000, seed=2)]}
print(json.dumps(scores))
"""

# %%
import json
import subprocess
import sys
import tempfile

scores = {}
for policy in ("new", "continual"):
    folder = tempfile.mkdtemp()
    for week in (1, 2, 3):
        done = subprocess.run(
            [sys.executable, "-c", WEEK, str(week), policy, folder],
            capture_output=True,
            text=True,
            check=True,
        )
        *report, last = done.stdout.splitlines()
        scores[policy, week] = {int(w): s for w, s in json.loads(last).items()}
        print(
            policy,
            "week",
            week,
            {w: round(s, 3) for w, s in scores[policy, week].items()},
            *(line.partition(": ")[2] for line in report),
        )

# %% [markdown]
# The third week's memory has grown with the vocabulary: `1 grown (0.weight 40x16 -> 60x16)`. What
# is left of the first week, with a new AdamW every week (new) and with the memory (continual):

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(num="Accuracy on week 1 after each week", figsize=(5, 3))
for policy in ("new", "continual"):
    axes.plot((1, 2, 3), [scores[policy, week][1] for week in (1, 2, 3)], marker="o", label=policy)
axes.set(xlabel="after week", ylabel="accuracy on week 1", xticks=(1, 2, 3))
axes.legend()
figure.tight_layout()

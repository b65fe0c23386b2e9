# %% [markdown]
# # First steps
#
# A model learns many tasks, one after the other. Most of them are small. Nothing of earlier tasks is
# kept but the weights, so what was learned first is easily lost. Continual Adam moves the weights
# that mattered before more slowly. Change one import and add one line:

# %%
import torch

from longtail import ContinualAdamW

torch.manual_seed(0)
model = torch.nn.Linear(10, 2)
optimizer = ContinualAdamW(model.parameters(), lr=1e-3)  # was: torch.optim.AdamW
for task in range(3):
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()
    optimizer.end_task()  # the only new line
print("tasks seen:", int(optimizer.param_groups[0]["tasks_seen"]))

# %% [markdown]
# ## Two hundred tasks
#
# The benchmark `toy` makes 200 tasks with ten classes in common. A task has three of them, and a few
# to a thousand examples:

# %%
from longtail.benchmarks import load
from longtail.tasks import size_statistics, tail_plot

spec = load("toy")
benchmark = spec.build(spec.Settings(), 0)
sizes = benchmark.sequence.train_sizes
print(tail_plot(sizes))
share = size_statistics(benchmark.sequence)["share_of_largest_tenth"]
print(f"the largest tenth of the tasks has {share:.0%} of the examples")

# %% [markdown]
# ## With and without
#
# The same model and the same batches, once with an AdamW that starts anew with every task (`new`)
# and once with Continual AdamW (`continual`):

# %%
from longtail.methods import Finetune
from longtail.metrics import curve, summary
from longtail.replicas import build_model
from longtail.training import POLICIES, Run, TrainSettings, train

runs = {}
for policy in ("new", "continual"):
    model = build_model(benchmark.make_model, seed=0)
    settings = TrainSettings(**{**spec.train, "evaluate_every": 10})
    method = Finetune(model, benchmark.sequence.objective)
    run = Run(benchmark.sequence, model, method, [POLICIES[policy]], settings, seed=0)
    train(run)
    runs[policy] = run
    print(
        f"{policy:9}", {name: round(float(value), 3) for name, value in summary(run.matrix).items()}
    )

# %% [markdown]
# RP is the accuracy over all tasks at the end, LP that of each task when it was learned; BWT is how
# much it changed since, FGT how much was lost from its best. With the memory more is kept:

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(num="Accuracy over all tasks so far, by tasks learned", figsize=(6, 3))
for policy, run in runs.items():
    after, accuracy = curve(run.matrix)
    axes.plot(after, accuracy, label=policy)
axes.set(xlabel="tasks learned", ylabel="accuracy over all of them")
axes.legend()
figure.tight_layout()

# %% [markdown]
# One seed decides nothing. The same from the command line, with as many seeds as you like, a table
# with standard errors and a page to look at, is [a study](../studies.md):
#
# ```
# longtail run toy --policy continual
# longtail run toy --policy new
# longtail report runs
# ```
#
# Next: [Continual Adam in five minutes](../continual_adam.md) says what it costs, when it helps and
# when it does not.

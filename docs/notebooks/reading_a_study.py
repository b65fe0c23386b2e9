# %% [markdown]
# # Reading a study
#
# A study is a file that stands for many runs. This one compares two methods with and without what
# Continual Adam remembers, ten seeds each, on two hundred small tasks:

# %%
from pathlib import Path

from longtail.cli import main

STUDY = """
benchmark = "toy"
methods = ["finetune", "reservoir"]
policies = ["continual", "new"]
seeds = "0-9"

[report]
title = "Two methods, with and without MC"
checks = ["mc_improves"]
"""
Path("my.toml").write_text(STUDY, encoding="utf-8")
code = main(["study", "my.toml", "--out", "runs/my", "--quiet", "--no-report"])
print("exit code", code)

# %% [markdown]
# ## Its runs
#
# `read` makes tables of any folder of runs. What cannot be read becomes a sentence in `problems`:

# %%
from longtail.report import read

frames = read("runs/my")
runs = frames.runs[frames.runs["status"] == "finished"]
print(len(frames.runs), "runs,", len(runs), "finished;", *(frames.problems or ["no problems"]))
print(runs[["method", "policy", "seed", "RP"]].head(3).round(1).to_string(index=False))

# %% [markdown]
# ## Its table
#
# Runs that differ in their seed alone are one row, with a mean and its standard error. RP is the
# accuracy over all tasks at the end, LP that of each task when it was learned:

# %%
import json

code = main(["report", "runs/my", "--quiet"])
table = json.loads(Path("runs/my/table.json").read_text(encoding="utf-8"))
for row in table["rows"]:
    values = "   ".join(f"{m} {row[m]:5.1f} ± {row[m + '_se']:.1f}" for m in ("RP", "LP", "BWT"))
    print(f"{row['method']:10} {row['policy']:10} {values}")

# %% [markdown]
# ## Its checks
#
# A check is a claim with the numbers it rests on. It holds or fails where its margin is more than two
# standard errors from zero, seed by seed where seeds are shared; in between it is undecided:

# %%
for check in table["checks"]:
    print(f"{check['verdict']:9}  {check['claim']}")

# %% [markdown]
# ## Its curves
#
# RP is also known on the way, with a value for every seed:

# %%
import matplotlib.pyplot as plt

curves = frames.curves.merge(runs[["run", "method", "policy"]], on="run")
figure, axes = plt.subplots(num="Accuracy over all tasks so far, ten seeds each", figsize=(6, 3.5))
for (method, policy), mine in curves.groupby(["method", "policy"]):
    points = mine.groupby("tasks")["RP"]
    mean, se = points.mean(), points.sem()
    style = "-" if policy == "continual" else ":"
    (line,) = axes.plot(mean.index, mean, style, label=f"{method}, {policy}")
    axes.fill_between(
        mean.index, mean - se, mean + se, alpha=0.2, color=line.get_color(), linewidth=0
    )
axes.set(xlabel="tasks learned", ylabel="accuracy over all of them (%)")
axes.legend()
figure.tight_layout()

# %% [markdown]
# `runs/my/report.html` has all of this and more on one page that can be sent by mail.
# [The report](../report.md) says what is on it, and [Studies](../studies.md) what a file may ask for.

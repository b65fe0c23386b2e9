# %% [markdown]
# # Your own method
#
# A method has at most four hooks: `loss` may add to the loss, `after_backward` may change the
# gradient, `observe` sees each batch after the step, and `end_task` sees the task's examples once
# more. This one pulls every weight to where the last task left it:
#
#     L(θ) = L_task(θ) + λ |θ - θ*|²
#
# It goes into a file, so that the command line finds it too.

# %%
SOURCE = '''
from dataclasses import dataclass, field

from longtail.methods import Method


class Anchor(Method):
    """Stay close to the last task's weights: L(θ) = L_task(θ) + λ |θ - θ*|²."""

    name = "anchor"

    @dataclass(frozen=True)
    class Settings(Method.Settings):
        strength: float = field(default=0.01, metadata={"help": "λ"})

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.parameters = list(self.model.parameters())
        self.anchor = None

    def after_backward(self):  # the gradient of the second term is 2 λ (θ - θ*)
        if self.anchor is not None:
            for p, a in zip(self.parameters, self.anchor, strict=True):
                p.grad.add_(p.detach() - a, alpha=2 * self.settings.strength)

    def end_task(self, train):
        self.anchor = [p.detach().clone() for p in self.parameters]
'''
from pathlib import Path

Path("my_methods.py").write_text(SOURCE, encoding="utf-8")

# %% [markdown]
# ## In Python
#
# Two hundred small tasks, with Finetune, which does nothing against forgetting, and with three
# strengths of ours:

# %%
import sys

from longtail.benchmarks import load
from longtail.methods import Finetune
from longtail.metrics import summary
from longtail.replicas import build_model
from longtail.training import POLICIES, Run, TrainSettings, train

sys.path.insert(0, "")  # a notebook's folder is there already
from my_methods import Anchor

spec = load("toy")
benchmark = spec.build(spec.Settings(), 0)


def metrics(make_method):
    model = build_model(benchmark.make_model, seed=0)
    method = make_method(model, benchmark.sequence.objective)
    policies = [POLICIES["continual"]]
    run = Run(benchmark.sequence, model, method, policies, TrainSettings(**spec.train), seed=0)
    train(run)
    return {name: round(float(value), 3) for name, value in summary(run.matrix).items()}


found = {"finetune": metrics(Finetune)}
for strength in (0.01, 0.1, 1.0):
    found[f"anchor, λ = {strength}"] = metrics(lambda *a, λ=strength: Anchor(*a, strength=λ))
for name, values in found.items():
    print(f"{name:16}", values)

# %% [markdown]
# Here a little of it raises RP and more of it lowers it again. With one seed that is a guess: which
# strength is best is a question for validation data and several seeds, so for [a study](../studies.md).
#
# ## From the command line
#
# The method is named by its module and class, and its settings are flags. `longtail run` gives it a
# folder, resumes it where it was stopped, and refuses a setting that does not exist:

# %%
from longtail.cli import main

code = main(
    [
        "run",
        "toy",
        "--method",
        "my_methods:Anchor",
        "--strength",
        "0.1",
        "--tasks",
        "20",
        "--out",
        "runs/mine",
        "--quiet",
    ]
)
print("exit code", code)
print(sorted(path.name for path in Path("runs/mine").iterdir()))

# %% [markdown]
# [Bring your own](../bring_your_own.md) has the same for data, models and benchmarks.

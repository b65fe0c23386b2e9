"""The training loop: one policy, one method, one sequence of tasks, one seed.

`loop.py` holds `train`, short enough to read in one go; what it calls lies in the files beside it.
"""

from longtail.names import POLICIES, Policy
from longtail.training.loop import Interrupted, Position, Run, train
from longtail.training.settings import TrainSettings

__all__ = ["POLICIES", "Interrupted", "Policy", "Position", "Run", "TrainSettings", "train"]

"""Models of which some parameters belong to one task at a time, such as the head of that task.

Thousands of heads in one optimizer would cost as much as the rest of the model, and momentum, decay
or a penalty would move those that the task at hand has nothing to do with. So a model holds as
parameters what the present task learns and as buffers what the others have learned:

    begin_task(i):    table[current] = head;  head = table[i];  current = i

Examples of other tasks (replayed, or tests) are answered by their row of the table, which has no
gradient: under no method or policy does a task change another task's head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn


class TaskModel(nn.Module, ABC):
    """A module that is told which task begins.

    In a stack of replicas its tensors have a leading dimension more; both methods have to work with
    any. What `begin_task` changes it changes in place, without waiting for the device.
    """

    @abstractmethod
    def begin_task(self, task: int) -> None:
        """Put the parameters of this task where training finds them."""

    @abstractmethod
    def task_parameters(self) -> list[nn.Parameter]:
        """Those that hold one task after the other.

        An optimizer begins each task with a fresh state of theirs (plain Adam, whatever the policy
        for the rest), and no penalty ties them to what they were for the task before.
        """

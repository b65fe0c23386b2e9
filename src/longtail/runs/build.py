"""From settings to something that can be trained: one run, or a stack of runs as one program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor, nn

from longtail.methods import Method
from longtail.replicas import build_model
from longtail.runs.config import (
    RunConfig,
    cannot_stack,
    load_benchmark,
    method_class,
    stack_key,
    variant_key,
)
from longtail.runs.stacking import model_of, sequence_of, try_benchmark, try_to_stack
from longtail.tasks import TaskSequence
from longtail.training import Policy, Run
from longtail.training.captured_fisher import capture_fisher


def build_run(config: RunConfig, device: torch.device | str = "cpu") -> Run:
    """A fresh run of one configuration."""
    benchmark = load_benchmark(config.benchmark).build(config.data, config.seed)
    sequence = sequence_of(benchmark, config, config.seed).to(device)
    model = build_model(model_of(benchmark, config), config.seed).to(device)
    method = _method(config, model, sequence, config.seed)
    return Run(
        sequence,
        model,
        method,
        [config.moments],
        config.train,
        config.seed,
        evaluate=benchmark.evaluate,
        optim=dict(config.optim),
    )


def build_stack(configs: Sequence[RunConfig], device: torch.device | str = "cpu") -> Stack:
    """One program that trains all ``configs``; they must agree on `stack_key`."""
    stack = Stack(configs)
    first = stack.configs[0]
    spec = load_benchmark(first.benchmark)
    if not spec.can_stack(first.data):
        raise ValueError(
            f"benchmark {first.benchmark!r} cannot be stacked with these settings: "
            "`stack = false` in the study file trains its runs one by one"
        )
    if reason := cannot_stack(first):
        raise ValueError(f"these runs cannot be stacked: {reason}")
    try_to_stack(first)
    try_benchmark(first, stack.seeds)
    if spec.build_stack is not None:
        benchmark = spec.build_stack([row.data for row in stack.rows], stack.seeds)
    else:
        benchmark = spec.build(first.data, first.seed)
    seeds = torch.tensor(stack.seeds)
    sequence = sequence_of(benchmark, first, seeds).to(device)
    make_model = model_of(benchmark, first)
    model = build_model(make_model, stack.seeds, len(stack.rows)).to(device)
    method = _method(first, model, sequence, seeds.to(device))
    stack.run = Run(
        sequence,
        model,
        method,
        stack.policies,
        replace(first.train, lr=stack.lr),
        seeds.to(device),
        evaluate=benchmark.evaluate,
        optim=dict(first.optim),
    )
    return stack


class Stack:
    """Which config is which replica: rows (policy, learning rate, data) by seeds.

    The program trains the full grid; where ``configs`` lack a combination, it is left out of the
    results.
    """

    run: Run

    def __init__(self, configs: Sequence[RunConfig]) -> None:
        if not configs:
            raise ValueError("a stack needs at least one configuration")
        kinds = {stack_key(config): config for config in configs}
        if len(kinds) > 1:
            names = " and ".join(config.id for config in list(kinds.values())[:2])
            raise ValueError(f"runs {names} differ in more than a stack allows")
        self.configs = list(configs)
        self.seeds = list(dict.fromkeys(config.seed for config in configs))
        keys = [variant_key(config) for config in configs]
        rows = dict(zip(reversed(keys), reversed(self.configs), strict=True))
        order = list(dict.fromkeys(keys))
        self.rows = [rows[key] for key in order]
        row_of, seed_of = ({x: i for i, x in enumerate(xs)} for xs in (order, self.seeds))
        self.places = [(row_of[k], seed_of[c.seed]) for k, c in zip(keys, configs, strict=True)]
        self.lr = max(row.train.lr for row in self.rows)
        self.policies: list[Policy] = [
            replace(row.moments, lr_scale=row.train.lr / self.lr if self.lr else 1.0)
            for row in self.rows
        ]


def _method(
    config: RunConfig, model: nn.Module, sequence: TaskSequence, seed: int | Tensor
) -> Method:
    cls = method_class(config.method)
    method = cls(model, sequence.objective, seed=seed, **asdict(config.methods))
    if load_benchmark(config.benchmark).captured_fisher:
        capture_fisher(method, config.train)
    return method

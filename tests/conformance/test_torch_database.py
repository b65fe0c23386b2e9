"""Our optimizers under torch's own database of optimizer inputs.

torch ships the inputs (``OptimizerInfo``) and not the tests, so the bodies are ours. Each runs over
every row and implementation, once without a task boundary and once with one half way.
"""
# ruff: noqa: PT009, PT027 - torch's own assertEqual knows tensors

import copy
import io
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import (
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
    optims,
)
from torch.testing._internal.common_utils import TestCase, run_tests

from longtail import ContinualAdam, ContinualAdamW

STEPS = 6


def _rows_of(theirs: OptimizerInfo) -> Callable[..., list[OptimizerInput]]:
    """torch's rows without AMSGrad, which we do not have, and rows for the ablation settings."""

    def rows(device: Any, dtype: Any = None) -> list[OptimizerInput]:
        known = []
        for row in theirs.optim_inputs_func(device=device):
            kwargs = {k: v for k, v in row.kwargs.items() if k != "amsgrad"}
            known.append(OptimizerInput(params=None, kwargs=kwargs, desc=row.desc))
        for first in ("reset", "ema", "task"):
            for second in ("reset", "ema", "task", "task_seen"):
                kwargs = {"first_moment": first, "second_moment": second, "weight_decay": 0.1}
                known.append(OptimizerInput(None, kwargs, f"{first} m, {second} v"))
        return [*known, OptimizerInput(None, {"beta3": 0.0}, "no learning-rate adjustment")]

    return rows


def _info(ours: type[ContinualAdam], name: str) -> OptimizerInfo:
    theirs = next(info for info in optim_db if info.optim_cls.__name__ == name)
    return OptimizerInfo(
        ours,  # type: ignore[arg-type]
        optim_inputs_func=_rows_of(theirs),
        optim_error_inputs_func=theirs.optim_error_inputs_func,
        scheduler_inputs=theirs.scheduler_inputs,
        supported_impls=("foreach", "differentiable", "fused"),
        not_og_supported_flags=theirs.not_og_supported_flags,
        has_capturable_arg=True,
        supports_fused_on=("cpu", "cuda"),
    )


DATABASE = [_info(ContinualAdam, "Adam"), _info(ContinualAdamW, "AdamW")]
TORCH = {"ContinualAdam": torch.optim.Adam, "ContinualAdamW": torch.optim.AdamW}


class TestConformance(TestCase):
    def _cases(
        self, device: str, dtype: torch.dtype, info: OptimizerInfo, skip: tuple[str, ...] = ()
    ) -> Iterator[tuple[dict[str, Any], bool]]:
        rows = _get_optim_inputs_including_global_cliquey_kwargs(device, dtype, info, skip)
        for row in rows:
            for boundary in (False, True):
                print(row.desc, "with" if boundary else "without", "a boundary")  # if it fails
                yield copy.deepcopy(row.kwargs), boundary

    def _params(self, device: str, dtype: torch.dtype) -> list[Parameter]:
        generator = torch.Generator().manual_seed(1)
        shapes = ((5, 3), (4,), (), (2, 1, 3))
        values = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
        return [Parameter(x.to(device=device, dtype=dtype)) for x in values]

    def _train(
        self, optimizer: Any, params: list[Parameter], boundary: bool, start: int = 0
    ) -> None:
        for i in range(start, start + STEPS):
            generator = torch.Generator().manual_seed(i)
            for j, p in enumerate(params):
                grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
                p.grad = None if j == i % len(params) else grad.to(p.device, p.dtype)
            optimizer.step()
            if boundary and i == start + STEPS // 2 - 1:
                optimizer.end_task()

    def _values(self, params: list[Parameter], optimizer: Any) -> list[Tensor]:
        keys = [optimizer.state[p] for p in params]
        return [p.detach() for p in params] + [s[k] for s in keys for k in sorted(s)]

    @optims(DATABASE, dtypes=[torch.float32])
    def test_bad_inputs_raise_as_torch_does(self, device, dtype, optim_info):
        for error in optim_info.optim_error_inputs_func(device=device, dtype=dtype):
            row = error.optimizer_error_input
            params = row.params
            if params is None:
                params = [Parameter(torch.randn(2, 3, device=device, dtype=dtype))]
            assert error.error_on == OptimizerErrorEnum.CONSTRUCTION_ERROR
            if issubclass(error.error_type, Warning):
                with self.assertWarnsRegex(error.error_type, error.error_regex):
                    optim_info.optim_cls(params, **row.kwargs)
            else:
                with self.assertRaisesRegex(error.error_type, error.error_regex):
                    optim_info.optim_cls(params, **row.kwargs)

    @optims(DATABASE, dtypes=[torch.float32, torch.float64])
    def test_every_implementation_matches_the_for_loop(self, device, dtype, optim_info):
        for row in optim_info.optim_inputs_func(device=device):
            for boundary in (False, True):
                results = []
                for flag in (None, "foreach", "fused"):
                    kwargs = {**copy.deepcopy(row.kwargs), "foreach": False}
                    kwargs.pop("foreach" if flag else "", None)
                    if flag:
                        kwargs[flag] = True
                    params = self._params(device, dtype)
                    optimizer = optim_info.optim_cls(params, **kwargs)
                    self._train(optimizer, params, boundary)
                    results.append(self._values(params, optimizer))
                tight = {"rtol": 1e-10, "atol": 1e-12}
                loose = {"rtol": 1e-5, "atol": 1e-6}
                close = tight if dtype == torch.float64 and "cpu" in device else loose
                self.assertEqual(results[0], results[1], **close)
                self.assertEqual(results[0], results[2], **close)

    @optims(DATABASE, dtypes=[torch.float32, torch.float64])
    def test_without_beta3_and_boundary_it_is_torch(self, device, dtype, optim_info):
        for kwargs, boundary in self._cases(device, dtype, optim_info):
            if boundary or {"beta3", "first_moment"} & kwargs.keys():
                continue
            ours, theirs = self._params(device, dtype), self._params(device, dtype)
            optimizer = optim_info.optim_cls(ours, beta3=0.0, **kwargs)
            reference = TORCH[optim_info.optim_cls.__name__](theirs, **kwargs)
            self._train_detached(optimizer, ours)
            self._train_detached(reference, theirs)
            self.assertEqual(ours, theirs, rtol=1e-5, atol=1e-6)

    def _train_detached(self, optimizer: Any, params: list[Parameter]) -> None:
        """`differentiable` refuses leaves that require a gradient."""
        for p in params:
            p.requires_grad_(False)
        self._train(optimizer, params, False)

    @optims(DATABASE, dtypes=[torch.float32])
    def test_it_goes_downhill_with_schedulers(self, device, dtype, optim_info):
        turns = itertools.cycle(optim_info.scheduler_inputs)
        for kwargs, boundary in self._cases(device, dtype, optim_info, ("differentiable",)):
            weight = Parameter(torch.ones(4, device=device, dtype=dtype))
            kwargs.setdefault("lr", 0.05)
            optimizer = optim_info.optim_cls([weight], **kwargs)
            schedulers = [make(optimizer) for make in next(turns)]
            sign = -1 if kwargs.get("maximize") else 1

            def closure(weight=weight, optimizer=optimizer, sign=sign):
                optimizer.zero_grad()
                loss = sign * weight.square().sum()
                loss.backward()
                return loss.detach()

            start = sign * closure()
            for i in range(10):
                loss = optimizer.step(closure)
                for scheduler in schedulers:
                    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
                    scheduler.step(*((loss,) if isinstance(scheduler, plateau) else ()))
                if boundary and i == 4:
                    optimizer.end_task()
            self.assertLess(sign * closure(), start)

    @optims(DATABASE, dtypes=[torch.float32])
    def test_parameters_without_gradient_and_with_zero_gradient(self, device, dtype, optim_info):
        for kwargs, boundary in self._cases(device, dtype, optim_info):
            kwargs["weight_decay"] = 0.0
            params = self._params(device, dtype)
            for p in params:
                p.requires_grad_(False)
            optimizer = optim_info.optim_cls(params, **kwargs)
            before = [p.detach().clone() for p in params]
            optimizer.step()
            self.assertFalse(optimizer.state)
            for i in range(4):
                for p in params:
                    p.grad = torch.zeros_like(p)
                optimizer.step()
                if boundary and i == 1:
                    optimizer.end_task()
            self.assertEqual(params, before, rtol=0, atol=0)

    @optims(DATABASE, dtypes=[torch.float32, torch.bfloat16])
    def test_saving_loading_pickling_copying(self, device, dtype, optim_info):
        for kwargs, boundary in self._cases(device, dtype, optim_info, ("differentiable",)):
            params = self._params(device, dtype)
            optimizer = optim_info.optim_cls(params, **kwargs)
            self._train(optimizer, params, boundary)
            buffer = io.BytesIO()
            torch.save(optimizer.state_dict(), buffer)
            buffer.seek(0)
            twins = [Parameter(p.detach().clone()) for p in params]
            loaded = optim_info.optim_cls(twins, **kwargs)
            loaded.load_state_dict(torch.load(buffer, weights_only=True))
            copies = [
                (loaded, twins),
                *(
                    (o, o.param_groups[0]["params"])
                    for o in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)))
                ),
            ]
            self._train(optimizer, params, boundary, start=STEPS)
            expected = self._values(params, optimizer)
            for other, others in copies:
                self._train(other, others, boundary, start=STEPS)
                self.assertEqual(self._values(others, other), expected, rtol=0, atol=0)

    @optims(DATABASE, dtypes=[torch.float32])
    def test_older_state_dicts_load(self, device, dtype, optim_info):
        for kwargs, boundary in self._cases(device, dtype, optim_info, ("differentiable",)):
            params = self._params(device, dtype)
            optimizer = optim_info.optim_cls(params, **kwargs)
            self._train(optimizer, params, boundary)
            old = copy.deepcopy(optimizer.state_dict())
            for group in old["param_groups"]:
                for flag in optim_info.not_og_supported_flags:
                    group.pop(flag, None)
            for state in old["state"].values():  # before torch 1.12 it was a number
                state["step"] = state["step"].item()
            optimizer.load_state_dict(old)
            self._train(optimizer, params, boundary, start=STEPS)
            self.assertTrue(all(isinstance(s["step"], Tensor) for s in optimizer.state.values()))

    @optims(DATABASE, dtypes=[torch.complex64])
    def test_complex_parameters_match_real_pairs(self, device, dtype, optim_info):
        for kwargs, boundary in self._cases(device, dtype, optim_info, ("differentiable",)):
            real = [torch.randn(3, 2, device=device), torch.randn(4, 2, device=device)]
            a = [Parameter(torch.view_as_complex(x).clone()) for x in real]
            b = [Parameter(x.clone()) for x in real]
            first, second = (optim_info.optim_cls(p, **copy.deepcopy(kwargs)) for p in (a, b))
            for i in range(STEPS):
                for x, y in zip(a, b, strict=True):
                    y.grad = torch.randn(y.shape, device=device)
                    x.grad = torch.view_as_complex(y.grad.clone())
                first.step()
                second.step()
                if boundary and i == 2:
                    first.end_task()
                    second.end_task()
            pairs = [torch.view_as_real(x.detach()) for x in a]
            self.assertEqual(pairs, [y.detach() for y in b], rtol=1e-5, atol=1e-6)

    @optims(DATABASE, dtypes=[torch.float64])
    def test_default_dtype_does_not_matter(self, device, dtype, optim_info):
        before = torch.get_default_dtype()
        try:
            for kwargs, boundary in self._cases(device, dtype, optim_info, ("differentiable",)):
                results = []
                for default in (torch.float32, torch.float64):
                    torch.set_default_dtype(default)
                    params = self._params(device, dtype)
                    optimizer = optim_info.optim_cls(params, **copy.deepcopy(kwargs))
                    self._train(optimizer, params, boundary)
                    results.append(params)
                self.assertEqual(results[0], results[1], rtol=1e-5, atol=1e-6)
        finally:
            torch.set_default_dtype(before)


instantiate_device_type_tests(TestConformance, globals(), only_for=("cpu", "cuda"))

if __name__ == "__main__":
    run_tests()

"""What a benchmark may say of itself, as a `SPEC` or as attributes of a module."""

from __future__ import annotations

from dataclasses import fields, replace
from types import ModuleType
from typing import Any

import pytest

from longtail.benchmarks import BENCHMARKS, BenchmarkSpec, load, toy
from longtail.benchmarks.spec import spec_of


def module_with(**attributes: Any) -> ModuleType:
    module = ModuleType("mine")
    vars(module).update(attributes)
    return module


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_overrides_only_settings_that_exist(name: str) -> None:
    from longtail.runs.config import method_names, options

    for method in method_names():
        found = {option.key: option.default for option in options(name, method)}
        spec = load(name)
        wanted = {**spec.train, **spec.method_train.get(method, {})}
        assert all(found[f"train.{key}"] == value for key, value in wanted.items())
    assert set(spec.stack_fields) <= {field.name for field in fields(spec.Settings)}


def test_a_module_with_settings_and_build_alone_is_a_benchmark() -> None:
    spec = spec_of(module_with(Settings=toy.Settings, build=toy.build))
    assert spec == BenchmarkSpec(toy.Settings, toy.build)
    assert not spec.can_stack(toy.Settings())


def test_attributes_of_a_module_are_the_fields_of_a_spec() -> None:
    def most_seeds(settings: Any, method: str, memory: int) -> int:
        return 3

    said = module_with(
        Settings=toy.Settings,
        build=toy.build,
        TRAIN={"lr": 0.5},
        METHOD_TRAIN={"ewc": {"lr": 0.25}},
        METHOD_SETTINGS={"ewc": {"strength": 2.0}},
        STACKABLE=True,
        STACK_FIELDS=("tasks",),
        CAPTURED_FISHER=True,
        most_seeds=most_seeds,
    )
    assert spec_of(said) == BenchmarkSpec(
        toy.Settings,
        toy.build,
        train={"lr": 0.5},
        method_train={"ewc": {"lr": 0.25}},
        method_settings={"ewc": {"strength": 2.0}},
        stackable=True,
        stack_fields=("tasks",),
        captured_fisher=True,
        most_seeds=most_seeds,
    )


def test_a_spec_wins_over_what_else_its_module_has() -> None:
    spec = replace(toy.SPEC, train={"lr": 7.0})
    said = module_with(SPEC=spec, Settings=toy.Settings, build=toy.build, TRAIN={"lr": 1.0})
    assert spec_of(said) is spec


def test_which_settings_a_stack_may_have() -> None:
    def few(settings: toy.Settings) -> bool:
        return settings.tasks < 10

    base = {"Settings": toy.Settings, "build": toy.build}
    small, large = toy.Settings(tasks=5), toy.Settings(tasks=50)
    for attributes, expected in (
        ({"STACKABLE": True}, (True, True)),
        ({"STACKABLE": True, "stackable": few}, (True, False)),
        ({"build_stack": print}, (True, True)),
        ({"build_stack": print, "stackable": few}, (True, False)),
        ({"stackable": few}, (False, False)),
    ):
        spec = spec_of(module_with(**base, **attributes))
        assert (spec.can_stack(small), spec.can_stack(large)) == expected, attributes
    with pytest.raises(ValueError, match="build_stack should say stackable"):
        BenchmarkSpec(toy.Settings, toy.build, build_stack=lambda *_: toy.build(small, 0))

"""All settings of a run, resolved: where each value comes from and what it may be.

A run is named by ``benchmark``, ``method``, ``optimizer`` (a policy) and ``seed``, and shaped by
four tables:

======== ============================================ =================================
table    dataclass                                    defaults overridden by
======== ============================================ =================================
data     the benchmark's ``Settings``                 nothing
train    ``TrainSettings``                            its ``train``, ``method_train[method]``
methods  the method's ``Settings``                    the benchmark's ``method_settings``
policy   first_moment second_moment beta3 boundary    the named optimizer policy
======== ============================================ =================================

Later wins: defaults, the benchmark's overrides, a TOML file, flags, ``--set``. A key that no table
has is refused with the nearest one that exists.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from longtail import benchmarks
from longtail.methods import METHODS, Method
from longtail.runs.values import check, flatten, parse, plain, unknown
from longtail.support.modules import exists, import_named
from longtail.training import POLICIES, Policy, TrainSettings

TABLES = ("data", "train", "methods", "policy")
POLICY_FIELDS = ("first_moment", "second_moment", "beta3", "boundary")
_HEAD = {"method": "finetune", "optimizer": "continual"}


@dataclass(frozen=True)
class Option:
    """One setting: ``table`` is empty for method, optimizer and seed."""

    table: str
    name: str
    type: Any
    default: Any
    help: str

    @property
    def key(self) -> str:
        return f"{self.table}.{self.name}" if self.table else self.name


@dataclass(frozen=True)
class RunConfig:
    """Everything a run's scores depend on, as ``config.toml`` holds it."""

    benchmark: str
    method: str
    optimizer: str
    seed: int
    data: Any
    train: TrainSettings
    methods: Any
    policy: Policy

    def as_dict(self) -> dict[str, Any]:
        """Plain nested values, ready for TOML and JSON."""
        head = {k: getattr(self, k) for k in ("benchmark", "method", "optimizer", "seed")}
        tables = {t: plain(vars(getattr(self, t))) for t in ("data", "train", "methods")}
        if self.train.tie == "first":  # younger than published runs, which keep their ids
            del tables["train"]["tie"]
        policy = {k: getattr(self.policy, k) for k in POLICY_FIELDS}
        return {**head, **tables, "policy": plain(policy)}

    @functools.cached_property  # a study of thousands of runs asks for each a dozen times
    def id(self) -> str:
        """Twelve hexadecimal digits that are the same wherever the settings are the same."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def load_benchmark(name: str) -> benchmarks.BenchmarkSpec[Any]:
    """`benchmarks.load`, with the nearest name there is where a name is not known."""
    bare = name not in benchmarks.BENCHMARKS and "." not in name
    if bare and not exists(name):
        raise unknown("benchmark", name, benchmarks.BENCHMARKS)
    return benchmarks.load(name)


def method_names() -> list[str]:
    return [*METHODS, "multitask"]


def method_class(method: str) -> type[Method]:
    """A registered method or ``package.module:Class``; multitask is Finetune on the union."""
    if ":" in method:
        return _imported(method)
    if method not in method_names():
        raise unknown("method", method, method_names())
    return METHODS["finetune" if method == "multitask" else method]


def _imported(path: str) -> type[Method]:
    module, _, name = path.partition(":")
    try:
        found = getattr(import_named(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"method {path!r} cannot be imported: {error}") from None
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ValueError(f"method {path!r} is not a subclass of longtail.methods.Method")
    return found


def options(benchmark: str, method: str = "finetune", optimizer: str = "continual") -> list[Option]:
    """Every setting of such a run, with its type, its default and its line of help."""
    spec = load_benchmark(benchmark)
    cls = method_class(method)
    if optimizer not in POLICIES:
        raise unknown("optimizer policy", optimizer, POLICIES)
    policy = {k: getattr(POLICIES[optimizer], k) for k in POLICY_FIELDS}
    head = [
        Option("", "method", str, "finetune", f"one of {', '.join(method_names())}"),
        Option("", "optimizer", str, "continual", f"optimizer policy: {', '.join(POLICIES)}"),
        Option("", "seed", int, 0, "seed of the order, the model, the batches and the buffers"),
    ]
    return [
        *head,
        *_fields("data", spec.Settings, {}),
        *_fields("train", TrainSettings, {**spec.train, **spec.method_train.get(method, {})}),
        *_fields("methods", cls.Settings, spec.method_settings.get(method, {})),
        *(o for o in _fields("policy", Policy, policy) if o.name in POLICY_FIELDS),
    ]


def _fields(table: str, cls: type, overrides: Mapping[str, Any]) -> list[Option]:
    hints, fields = get_type_hints(cls), dataclasses.fields(cls)
    for name in overrides:
        assert name in hints, f"{cls.__name__} has no field {name!r} to override"
    found = []
    for field in fields:
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        default = overrides.get(field.name, default)
        text = field.metadata.get("help", "")
        found.append(Option(table, field.name, hints[field.name], default, text))
    return found


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file, with errors that name it."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"no such file: {path}") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder, not a TOML file") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, say
        raise ValueError(f"{path} is not a TOML file: {error}") from None


def full_key(key: str, known: Iterable[Option]) -> str:
    """``lr`` -> ``train.lr``: a bare name stands for the one setting that has it."""
    known = list(known)
    keys = [o.key for o in known]
    if key in keys:
        return key
    found = [o.key for o in known if o.name == key]
    if len(found) > 1:
        raise ValueError(f"setting {key!r} is ambiguous: {' or '.join(found)}")
    if not found:
        raise unknown("setting", key, keys)
    return found[0]


def resolve(
    benchmark: str | None = None,
    file: str | Path | Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
    sets: Iterable[str] = (),
) -> RunConfig:
    """The settings of one run: from defaults, a file or its content, flags, ``key=value`` texts.

    Keys of ``flags`` are dotted (``train.lr``) or nested; bare names (``lr``) are understood when
    only one table has them.

    Example:
        >>> resolve("toy", flags={"method": "ewc", "train.lr": 0.01}).train.lr
        0.01
    """
    layers = [dict(file) if isinstance(file, Mapping) else read_toml(file) if file else {}]
    layers += [dict(flags or {}), dict(_split(text) for text in sets)]
    layers = [flatten(layer) for layer in layers]
    named = {v for v in (benchmark, *(x.pop("benchmark", None) for x in layers)) if v is not None}
    if len(named) != 1:
        raise ValueError(f"name one benchmark, got {', '.join(sorted(map(str, named))) or 'none'}")
    name = str(named.pop())
    head = {k: v for layer in layers for k, v in layer.items() if k in ("method", "optimizer")}
    known = options(name, *(str(head.get(k, d)) for k, d in _HEAD.items()))

    values = {o.key: o.default for o in known}
    for layer in layers:
        values.update({full_key(key, known): value for key, value in layer.items()})
    missing = [key for key, value in values.items() if value is MISSING]
    if missing:
        raise ValueError(f"setting {missing[0]!r} has no default: give it a value")
    values = {o.key: check(values[o.key], o.type, o.key) for o in known}
    if values["seed"] < 0:
        raise ValueError(f"seed must not be negative, got {values['seed']}")
    if values["seed"] >= 2**63:  # a stack keeps its seeds in a tensor
        raise ValueError(f"seed must be below 2**63, got {values['seed']}")

    def table(name: str) -> dict[str, Any]:
        return {o.name: values[o.key] for o in known if o.table == name}

    method, optimizer = values["method"], values["optimizer"]
    return RunConfig(
        benchmark=name,
        method=method,
        optimizer=optimizer,
        seed=values["seed"],
        data=_build(load_benchmark(name).Settings, table("data"), "data"),
        train=_build(TrainSettings, table("train"), "train"),
        methods=_build(method_class(method).Settings, table("methods"), "methods"),
        policy=_build(Policy, {"name": optimizer, **table("policy")}, "policy"),
    )


def _split(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"--set takes key=value, got {text!r}")
    return key.strip(), parse(value.strip())


def _build(cls: type, values: dict[str, Any], table: str) -> Any:
    try:
        return cls(**values)
    except ValueError as error:  # the class checks its own ranges; say in which table
        raise ValueError(f"[{table}] {error}") from None


def _remembered(key: Callable[..., str]) -> Callable[..., str]:
    """``key`` computed once for equal arguments: thousands of runs of a study share their settings.

    Settings that cannot be hashed, as a benchmark's with a list among them, are computed each time.
    """
    kept = functools.lru_cache(maxsize=1024)(key)

    @functools.wraps(key)
    def look_up(*arguments: Any) -> str:
        try:
            hash(arguments)
        except TypeError:
            return key(*arguments)
        return kept(*arguments)

    return look_up


def variant_key(config: RunConfig) -> str:
    """Equal for configs that differ in nothing but the seed."""
    return _variant_key(replace(config, seed=0))


@_remembered
def _variant_key(config: RunConfig) -> str:
    return config.id


def stack_key(config: RunConfig) -> str:
    """Equal for configs that may train as one stack: all but seed, policy, lr, stackable data.

    A task boundary reaches the whole optimizer, so policies with and without one stay apart. The
    policies of a stack share their buffers, so methods that replay need the same data.
    """
    replays = hasattr(config.methods, "buffer")
    may_differ = () if replays else load_benchmark(config.benchmark).stack_fields
    return _stack_key(replace(config, seed=0), may_differ)


@_remembered
def _stack_key(config: RunConfig, may_differ: tuple[str, ...]) -> str:
    tree = config.as_dict()
    del tree["seed"], tree["optimizer"]
    tree["policy"] = tree["policy"]["boundary"]
    del tree["train"]["lr"]
    for field in may_differ:
        del tree["data"][field]
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:12]

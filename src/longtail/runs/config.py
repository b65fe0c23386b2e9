"""All settings of a run, resolved: where each value comes from and what it may be.

A run is named by ``benchmark``, ``method``, ``policy``, ``optimizer`` (a class) and ``seed``, and
shaped by five tables:

======== ============================================ =================================
table    dataclass                                    defaults overridden by
======== ============================================ =================================
data     the benchmark's ``Settings``                 nothing
train    ``TrainSettings``                            its ``train``, ``method_train[method]``
methods  the method's ``Settings``                    ``method_settings`` of it and its bases
moments  ``POLICY_FIELDS`` of ``Policy``               the policy
optim    arguments of the optimizer's class           nothing
======== ============================================ =================================

``train.betas``, ``train.eps`` and ``train.fused`` are Continual Adam's; what other optimizers have
beyond ``train.lr`` and ``train.weight_decay`` is in ``optim``. A policy that is a function has its
keyword arguments in ``moments``. Where an optimizer is given and no policy, that is ``kept``.

Later wins: defaults, the benchmark's overrides, a TOML file, flags, ``--set``. A key that no table
has is refused with the nearest one that exists.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from longtail import benchmarks, methods
from longtail.methods import Method
from longtail.runs.values import NEAR, check, flatten, parse, plain, unknown
from longtail.support import doors
from longtail.support.modules import exists, import_object
from longtail.training import POLICIES, Policy, TrainSettings
from longtail.training.boundary import policy_for
from longtail.training.optimizer_class import (
    ADAM_SETTINGS,
    OptimizerClass,
    Setting,
    find_function,
    find_optimizer,
    function_settings,
)
from longtail.training.optimizer_class import names as optimizer_names

TABLES = ("data", "train", "methods", "moments", "optim")
POLICY_FIELDS = ("first_moment", "second_moment", "beta3", "boundary", "past_dtype")
POLICY_HELP = "what becomes of the optimizer's state at a task's end: " + ", ".join(POLICIES)
OPTIMIZER_HELP = "adamw or adam (Continual AdamW, Adam), one of torch.optim, or module:Class"
_SEED = "the seed"  # stands for it where the settings of a run are text


@dataclass(frozen=True)
class Option:
    """One setting: ``table`` is empty for method, policy, optimizer and seed."""

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
    policy: str
    seed: int
    data: Any
    train: TrainSettings
    methods: Any
    moments: Policy
    optim: tuple[tuple[str, Any], ...] = ()  # arguments of the optimizer's class

    @property
    def optimizer(self) -> str:
        """Its optimizer's name, or `module:Class`."""
        return self.train.optimizer

    @property
    def chosen(self) -> OptimizerClass:
        """The class of its optimizer."""
        return find_optimizer(self.optimizer)

    def as_dict(self) -> dict[str, Any]:
        """Plain nested values, ready for TOML and JSON."""
        head = {k: getattr(self, k) for k in ("benchmark", "method", "policy", "optimizer", "seed")}
        tables = {t: plain(vars(getattr(self, t))) for t in ("data", "train", "methods")}
        del tables["train"]["optimizer"]  # stands in the head
        if not self.chosen.ours:
            for key in ADAM_SETTINGS:
                del tables["train"][key]
        fields = policy_fields(self.moments, self.chosen)
        moments = {k: getattr(self.moments, k) for k in fields} | dict(self.moments.settings)
        if moments.get("past_dtype") == "float32":  # the same
            del moments["past_dtype"]
        if self.optim:
            tables["optim"] = plain(dict(self.optim))
        return {**head, **tables, "moments": plain(moments)}

    @functools.cached_property  # a study of thousands of runs asks for each a dozen times
    def id(self) -> str:
        """Twelve hexadecimal digits that are the same wherever the settings are the same."""
        before, after = self._around_seed
        return hashlib.sha256(f"{before}{self.seed}{after}".encode()).hexdigest()[:12]

    @functools.cached_property
    def _around_seed(self) -> tuple[str, str]:
        """The settings as JSON, up to the run's seed and from there on."""
        text = json.dumps({**self.as_dict(), "seed": _SEED}, sort_keys=True)
        before, _, after = text.rpartition(f'"seed": "{_SEED}"')
        return f'{before}"seed": ', after

    def with_seed(self, seed: int) -> RunConfig:
        """The same run with another seed, whose id is made from the same text."""
        found = replace(self, seed=seed)
        vars(found)["_around_seed"] = self._around_seed
        return found


def load_benchmark(name: str) -> benchmarks.BenchmarkSpec[Any]:
    """`benchmarks.load`, with the nearest name there is where a name is not known."""
    if name not in benchmarks.BENCHMARKS and "." not in name:
        known = benchmarks.paths()
        if name not in known and not exists(name):
            raise unknown("benchmark", name, known, doors.hint())
    return benchmarks.load(name)


def method_names() -> list[str]:
    return [*methods.names(), "multitask"]


def method_class(method: str) -> type[Method]:
    """A registered method or ``package.module:Class``; multitask is Finetune on the union."""
    if ":" in method:
        return _imported(method)
    if method == "multitask":
        return methods.find("finetune")
    if method not in methods.METHODS and method not in method_names():
        raise unknown("method", method, method_names(), doors.hint())
    return methods.find(method)


def whose_setting(name: str) -> str:
    """Says which methods have a setting of this name, for those who gave it to another; or ""."""
    owners = [m for m in methods.names() if name in _hints(methods.find(m).Settings)]
    if not owners:
        return ""
    shown = owners if len(owners) <= 4 else [*owners[:3], f"{len(owners) - 3} more"]
    listed = " and ".join(part for part in (", ".join(shown[:-1]), shown[-1]) if part)
    return f"it is a setting of {listed} (--method)"


def own_name(method: str) -> str:
    """What tables call a method: the ``name`` that a user's class gives itself, else its path.

    A name that it inherits is another method's.
    """
    named = vars(method_class(method)).get("name") if ":" in method else None
    return named if isinstance(named, str) and named else method


def _imported(path: str) -> type[Method]:
    try:
        found = import_object(path)
    except (ImportError, ValueError) as error:
        raise ValueError(f"method {path!r} cannot be imported: {error}") from None
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ValueError(f"method {path!r} is not a subclass of longtail.methods.Method")
    return found


def optimizer_class(name: str) -> OptimizerClass:
    """An optimizer by its name or ``module:Class``."""
    if ":" not in name and name.lower() not in optimizer_names():
        raise _unknown_word("optimizer", name)
    return find_optimizer(name)


def _unknown_word(kind: Literal["policy", "optimizer"], name: str) -> ValueError:
    """The error for an unknown name: it suggests the nearest policy or optimizer."""
    words = {"policy": list(POLICIES), "optimizer": list(optimizer_names())}
    own, other = words[kind], "policy" if kind == "optimizer" else "optimizer"
    nearest = difflib.get_close_matches(name.lower(), [*own, *words[other]], n=1, cutoff=NEAR)
    if nearest and nearest[0] not in own:
        return ValueError(
            f"unknown {kind} {name!r}; did you mean the {other} {nearest[0]!r} (--{other})?"
        )
    return unknown(kind, name, own)


def policy_named(name: str, chosen: OptimizerClass) -> Policy:
    """The policy of this name or ``module:function`` for an optimizer of this class."""
    if ":" not in name and name not in POLICIES:
        raise _unknown_word("policy", name)
    return policy_for(name, chosen)


def policy_fields(policy: Policy, chosen: OptimizerClass) -> tuple[str, ...]:
    """Which of POLICY_FIELDS mean something for this optimizer under this policy."""
    if chosen.ours:
        return POLICY_FIELDS if not policy.function else POLICY_FIELDS[:3]
    return () if policy.function or chosen.moments is None else POLICY_FIELDS[:2]


def options(
    benchmark: str,
    method: str = "finetune",
    policy: str | None = None,
    optimizer: str | None = None,
) -> list[Option]:
    """Every setting of such a run, with its type, its default and its line of help.

    Args:
        policy: None for `usual_policy`.
        optimizer: its name or ``module:Class``; None for the benchmark's.
    """
    spec = load_benchmark(benchmark)
    cls = method_class(method)
    train = {**spec.train, **spec.method_train.get(method, {})}
    usual = str(train.pop("optimizer", "adamw"))
    chosen = optimizer_class(usual if optimizer is None else optimizer)
    moments = policy_named(usual_policy(optimizer) if policy is None else policy, chosen)
    head = [
        Option("", "method", str, "finetune", f"one of {', '.join(method_names())}"),
        Option("", "policy", str, usual_policy(optimizer), POLICY_HELP),
        Option("", "optimizer", str, usual, OPTIMIZER_HELP),
        Option("", "seed", int, 0, "seed of the order, the model, the batches and the buffers"),
    ]
    elsewhere = ("optimizer", *(() if chosen.ours else ADAM_SETTINGS))
    return [
        *head,
        *_fields("data", spec.Settings, {}),
        *(o for o in _fields("train", TrainSettings, train) if o.name not in elsewhere),
        *_fields("methods", cls.Settings, _method_settings(spec, method, cls)),
        *_moment_options(moments, chosen),
        *(_option("optim", s, f"of {chosen.name}") for s in chosen.settings()),
    ]


def usual_policy(optimizer: str | None) -> str:
    """The policy of a run that names none: an optimizer that somebody names is kept."""
    return "continual" if optimizer is None else "kept"


def _method_settings(
    spec: benchmarks.BenchmarkSpec[Any], method: str, cls: type[Method]
) -> dict[str, Any]:
    """What the benchmark sets of a method, or else of the methods that it is derived from.

    A variant so differs from its base by what it adds, and their rows can be compared.
    """
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        found |= spec.method_settings.get(str(vars(base).get("name", "")), {})
    inherited = {k: v for k, v in found.items() if k in _hints(cls.Settings)}
    return {**inherited, **spec.method_settings.get(method, {})}


def _moment_options(policy: Policy, chosen: OptimizerClass) -> list[Option]:
    fields = policy_fields(policy, chosen)
    usual = {k: getattr(policy, k) for k in fields}
    found = [o for o in _fields("moments", Policy, usual) if o.name in fields]
    if not chosen.ours:  # nothing of theirs is averaged over tasks
        found = [replace(o, type=Literal["reset", "ema"]) for o in found]
    settings = function_settings(policy.function) if policy.function else []
    return found + [_option("moments", s, f"of {policy.name}") for s in settings]


def _option(table: str, setting: Setting, text: str) -> Option:
    return Option(table, setting.name, setting.type, setting.default, text)


def _fields(table: str, cls: type, overrides: Mapping[str, Any]) -> list[Option]:
    hints, fields = _hints(cls), dataclasses.fields(cls)
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


@functools.cache  # a study of hundreds of variants asks for the same few classes
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


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
        table, _, name = key.rpartition(".")
        if table in ("", "methods") and (whose := whose_setting(name)):
            raise ValueError(f"unknown setting {key!r}: {whose}")
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
    layers[0].pop("fingerprint", None)  # a run's config.toml has one: a record, not a setting
    layers += [dict(flags or {}), dict(_split(text) for text in sets)]
    layers = [flatten(layer) for layer in layers]
    given = (benchmark, *(layer.pop("benchmark", None) for layer in layers))
    benchmarks_named = {check(v, str, "benchmark") for v in given if v is not None}
    if len(benchmarks_named) != 1:
        raise ValueError(f"name one benchmark, got {', '.join(sorted(benchmarks_named)) or 'none'}")
    name = benchmarks_named.pop()
    named = ("method", "policy", "optimizer")
    head = {k: str(v) for layer in layers for k, v in layer.items() if k in named}
    known = options(name, head.get("method", "finetune"), head.get("policy"), head.get("optimizer"))

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

    method, policy = values["method"], values["policy"]
    chosen = optimizer_class(values["optimizer"])
    return RunConfig(
        benchmark=name,
        method=method,
        policy=policy,
        seed=values["seed"],
        data=_build(load_benchmark(name).Settings, table("data"), "data"),
        train=_build(TrainSettings, {**table("train"), "optimizer": chosen.name}, "train"),
        methods=_build(method_class(method).Settings, table("methods"), "methods"),
        moments=_policy(policy_named(policy, chosen), chosen, table("moments")),
        optim=tuple(table("optim").items()),
    )


def _policy(policy: Policy, chosen: OptimizerClass, given: dict[str, Any]) -> Policy:
    """The named policy with the settings that were given."""
    moments = {k: given.pop(k) for k in policy_fields(policy, chosen)}
    changed = replace(policy, **moments, settings=tuple(given.items()))
    if chosen.ours or policy.function:
        return changed
    # a boundary at which all is kept is none
    return replace(changed, boundary=(changed.first_moment, changed.second_moment) != ("ema",) * 2)


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


def cannot_stack(config: RunConfig) -> str | None:
    """Why such a run trains alone on a benchmark that can be stacked; None where it need not."""
    if not vars(method_class(config.method)).get("stackable", False):
        return f"{config.method} does not say that it can be stacked"
    if not config.chosen.elementwise:
        return f"{config.chosen.name} is not known to be elementwise"
    if config.moments.function and not getattr(
        find_function(config.moments.function), "elementwise", False
    ):
        return f"{config.policy} is not known to be elementwise"
    return None


def stack_key(config: RunConfig) -> str:
    """Equal for configs that may train as one stack: all but seed, policy, lr, stackable data.

    A task boundary reaches the whole optimizer, so policies with and without one stay apart; so do
    all that are functions, or of other optimizers than Continual Adam. The policies of a stack
    share their buffers, so methods that replay need the same data.
    """
    replays = hasattr(config.methods, "buffer")
    may_differ = () if replays else load_benchmark(config.benchmark).stack_fields
    return _stack_key(replace(config, seed=0), may_differ)


@_remembered
def _stack_key(config: RunConfig, may_differ: tuple[str, ...]) -> str:
    tree = config.as_dict()
    del tree["seed"]
    if config.chosen.ours and not config.moments.function:
        del tree["policy"]
        tree["moments"] = tree["moments"]["boundary"]
    del tree["train"]["lr"]
    for field in may_differ:
        del tree["data"][field]
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:12]

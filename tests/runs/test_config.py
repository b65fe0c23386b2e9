from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass, field, replace

import pytest
import tomli_w

from longtail.benchmarks import paths
from longtail.methods import METHODS, Finetune, Reservoir
from longtail.runs import config as settings
from longtail.runs.config import (
    cannot_stack,
    method_names,
    options,
    resolve,
    stack_key,
    variant_key,
)
from longtail.training import POLICIES


def test_defaults_are_the_dataclasses_and_the_benchmark_overrides_them():
    from longtail.benchmarks import toy

    config = resolve("toy")
    assert (config.method, config.policy, config.seed) == ("finetune", "continual", 0)
    assert config.data == toy.Settings()
    assert config.train.epochs == toy.SPEC.train["epochs"] != 1
    assert config.moments == POLICIES["continual"]


def test_later_layers_win(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text('method = "ewc"\nseed = 3\n[train]\nlr = 0.5\nepochs = 7\nbatch_size = 4\n')
    flags = {"train.lr": 0.25, "epochs": 8}
    config = resolve("toy", file, flags, ["train.lr=0.125", "strength = 3"])
    assert config.method == "ewc"
    assert config.seed == 3
    assert (config.train.batch_size, config.train.epochs, config.train.lr) == (4, 8, 0.125)
    assert config.methods.strength == 3.0


def test_benchmark_overrides_per_method(monkeypatch):
    from longtail.benchmarks import toy

    spec = replace(toy.SPEC, method_settings={"ewc": {"strength": 17.0}})
    monkeypatch.setattr(toy, "SPEC", spec)
    assert resolve("toy", flags={"method": "ewc"}).methods.strength == 17.0
    assert resolve("toy", flags={"method": "ewcpp"}).methods.strength != 17.0


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"benchmark": "no.such_module"}, r"no\.such_module"),
        ({}, "name one benchmark, got none"),
        ({"benchmark": "toy", "flags": {"benchmark": "synthetic"}}, "name one benchmark"),
        ({"benchmark": "toy", "flags": {"policy": "continal"}}, "did you mean 'continual'"),
        ({"benchmark": "toy", "flags": {"trian.lr": 1}}, "did you mean 'train.lr'"),
        ({"benchmark": "toy", "flags": {"train": {"lrr": 1}}}, "did you mean 'train.lr'"),
        ({"benchmark": "toy", "sets": ["epoch=1"]}, "did you mean 'train.epochs'"),
        ({"benchmark": "toy", "sets": ["strength=1"]}, "unknown setting 'strength'"),
        ({"benchmark": "toy", "sets": ["schedule=x"]}, "constant | linear"),
        ({"benchmark": "toy", "sets": ["epochs=0"]}, r"\[train\] .*epochs"),
        ({"benchmark": "toy", "sets": ["data.tasks=0"]}, r"\[data\] .*tasks"),
        ({"benchmark": "toy", "flags": {"seed": 2**63}}, "seed must be below 2\\*\\*63"),
        ({"benchmark": "toy", "flags": {"train.lr": float("inf")}}, "Invalid lr: inf"),
        ({"benchmark": "toy", "flags": {"method": "nowhere:Mine"}}, "cannot be imported"),
        ({"benchmark": "toy", "flags": {"method": "json:loads"}}, "not a subclass"),
    ],
)
def test_mistakes_are_value_errors_that_help(kwargs, message):
    with pytest.raises(ValueError, match=message):
        resolve(**kwargs)


def test_bare_name_in_two_tables_is_ambiguous_but_dotted_reaches_each(monkeypatch):
    from longtail.benchmarks import toy

    @dataclass(frozen=True)
    class Settings(toy.Settings):
        lr: float = field(default=1.0, metadata={"help": "another lr"})

    monkeypatch.setattr(toy, "SPEC", replace(toy.SPEC, Settings=Settings))
    with pytest.raises(ValueError, match=r"'lr' is ambiguous: data\.lr or train\.lr"):
        resolve("toy", sets=["lr=1"])
    config = resolve("toy", sets=["data.lr=2", "train.lr=3"])
    assert (config.data.lr, config.train.lr) == (2.0, 3.0)


def test_top_level_names_win_over_table_fields():
    # the run has a seed, and so have its data
    config = resolve("toy", sets=["policy=new", "optimizer=adam", "data.seed=4"])
    assert (config.policy, config.optimizer) == ("new", "adam")
    assert (config.seed, config.data.seed) == (0, 4)


@pytest.mark.parametrize("method", method_names())
def test_config_toml_gives_the_same_config_and_id(tmp_path, method):
    config = resolve("toy", flags={"method": method, "policy": "kept", "seed": 5})
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(config.as_dict()))
    again = resolve(file=path)
    assert again == config
    assert again.id == config.id
    assert tomllib.loads(path.read_text())["train"]["clip"] == "none"


def test_id_is_stable_and_tells_settings_apart():
    a = resolve("toy")
    assert (
        a.id
        == resolve("toy", sets=[f"train.lr={a.train.lr}"]).id
        == resolve("toy", sets=["seed=0"]).id
    )
    others = [
        resolve("toy", sets=[text]).id
        for text in ("seed=1", "train.lr=0.1", "moments.beta3=0.5", "data.tasks=20", "method=ewcpp")
    ]
    assert len({a.id, *others}) == 6


def test_policy_fields_can_be_overridden_for_ablations():
    config = resolve("toy", sets=["moments.first_moment=ema", "moments.beta3=0"])
    assert config.moments.first_moment == "ema"
    assert config.moments.second_moment == "task"
    assert config.moments.beta3 == 0.0
    assert config.moments.name == "continual"


@pytest.mark.parametrize("benchmark", paths())
def test_every_setting_has_a_line_of_help(benchmark):
    for method in method_names():
        for option in options(benchmark, method):
            assert option.help, f"{option.key} has no help"


def test_methods_registered_later_or_named_by_module_are_known(monkeypatch):
    class Mine(Finetune):
        name = "mine"

    monkeypatch.setitem(METHODS, "mine", Mine)
    assert resolve("toy", flags={"method": "mine"}).method == "mine"
    path = "longtail.methods.reservoir:Reservoir"
    assert resolve("toy", flags={"method": path, "buffer": 7}).methods.buffer == 7


def test_stack_key_ignores_what_a_stack_may_vary(monkeypatch):
    base = stack_key(resolve("toy"))
    for text in ("seed=1", "train.lr=0.1", "policy=new", "moments.beta3=0.5"):
        assert stack_key(resolve("toy", sets=[text])) == base
    for text in ("method=ewc", "train.epochs=9", "policy=kept", "data.tasks=20"):
        assert stack_key(resolve("toy", sets=[text])) != base
    from longtail.benchmarks import toy

    monkeypatch.setattr(toy, "SPEC", replace(toy.SPEC, stack_fields=("tasks",)))
    assert stack_key(resolve("toy", sets=["data.tasks=20"])) == stack_key(resolve("toy"))


def test_variant_key_ignores_the_seed_alone():
    base = variant_key(resolve("toy"))
    assert variant_key(resolve("toy", sets=["seed=1"])) == base
    for text in ("train.lr=0.1", "policy=new", "moments.beta3=0.5", "data.tasks=20"):
        assert variant_key(resolve("toy", sets=[text])) != base


def test_a_list_among_a_users_settings_is_no_obstacle_to_keys(monkeypatch):
    from longtail.benchmarks import toy

    @dataclass(frozen=True)
    class Settings(toy.Settings):
        words: list[str] = field(default_factory=list, metadata={"help": "cannot be hashed"})

    monkeypatch.setattr(toy, "SPEC", replace(toy.SPEC, Settings=Settings))
    few, many = (resolve("toy", flags={"data.words": words}) for words in (["a"], ["a", "b"]))
    for key in (stack_key, variant_key):
        assert key(few) == key(resolve("toy", flags={"data.words": ["a"], "seed": 3})) != key(many)


@pytest.mark.parametrize("content", ["not toml [", "\xff\xfe"])
def test_broken_file_is_named(tmp_path, content):
    path = tmp_path / "broken.toml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=r"broken\.toml"):
        resolve("toy", path)
    with pytest.raises(ValueError, match=r"no such file: .*absent\.toml"):
        resolve("toy", tmp_path / "absent.toml")
    with pytest.raises(ValueError, match="is a folder"):
        resolve("toy", tmp_path)


OWN = "helpers.own_optimizers"


def test_an_optimizer_brings_its_settings_and_its_config_can_be_read_back(tmp_path):
    sets = ["optimizer=SGD", "momentum=0.9", "policy=new", "optim.nesterov=true"]
    config = resolve("toy", sets=sets)
    assert config.optimizer == "sgd"
    assert dict(config.optim)["momentum"] == 0.9
    told = config.as_dict()
    assert told["moments"] == {"first_moment": "reset", "second_moment": "reset"}
    assert not {"betas", "eps", "fused"} & told["train"].keys()
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(told))
    again = resolve(file=path)
    assert again == config
    assert again.id == config.id != resolve("toy", sets=[*sets, "momentum=0.8"]).id


@pytest.mark.parametrize("name", ["rmsprop", "adafactor", "muon", f"{OWN}:Sign"])
def test_every_optimizer_reads_its_own_config(tmp_path, name):
    config = resolve("toy", flags={"policy": "kept", "optimizer": name})
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(config.as_dict()))
    assert resolve(file=path) == config


def test_a_policy_may_be_a_function_with_settings(tmp_path):
    config = resolve("toy", flags={"policy": f"{OWN}:soften", "keep": 0.25})
    assert dict(config.moments.settings) == {"keep": 0.25}
    assert config.moments.beta3 == 0.0  # plain Adam between its calls
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(config.as_dict()))
    assert resolve(file=path) == config
    with pytest.raises(ValueError, match=r"moments\.keep must be number, got 'x'"):
        resolve("toy", flags={"policy": f"{OWN}:soften", "keep": "x"})


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["optimizer=sdg"], "unknown optimizer 'sdg'; did you mean 'sgd'"),
        (["policy=sgd"], r"unknown policy 'sgd'; did you mean the optimizer 'sgd' \(--optimizer\)"),
        (["policy=adamv"], r"unknown policy 'adamv'; did you mean the optimizer 'adam"),
        (
            ["optimizer=kept"],
            r"unknown optimizer 'kept'; did you mean the policy 'kept' \(--policy",
        ),
        (
            ["optimizer=contiual"],
            "unknown optimizer 'contiual'; did you mean the policy 'continual'",
        ),
        (["policy=anew"], "unknown policy 'anew'; did you mean 'new'"),
        (["train.optimizer=sgd"], "unknown setting 'train.optimizer'; did you mean 'optimizer'"),
        (["optimizer=sgd", "momentun=1"], "did you mean 'optim.momentum'"),
        (["optimizer=sgd", "beta3=0.9"], "unknown setting 'beta3'"),
        (["optimizer=sgd", "second_moment=task"], r"moments\.second_moment must be reset"),
        (["optimizer=rmsprop", "train.eps=1"], "unknown setting 'train.eps'"),
        ([f"optimizer={OWN}:Ending"], "setting 'optim.power' has no default"),
        ([f"policy={OWN}:gone"], "policy .* cannot be imported"),
        (["momentum=0.9"], "unknown setting 'momentum'"),
    ],
)
def test_mistakes_about_optimizers_are_told(sets, message):
    with pytest.raises(ValueError, match=message):
        resolve("toy", sets=sets)


def test_policy_and_optimizer_stand_at_the_top():
    told = resolve("toy").as_dict()
    assert "optim" not in told
    assert (told["policy"], told["optimizer"]) == ("continual", "adamw")
    assert "optimizer" not in told["train"]
    assert set(told["moments"]) == {"first_moment", "second_moment", "beta3", "boundary"}


@pytest.mark.parametrize("name", ["adamw", "sgd", f"{OWN}:Sign"])
def test_an_optimizer_that_somebody_names_is_kept_unless_a_policy_is_given(tmp_path, name):
    assert resolve("toy", flags={"optimizer": name}).policy == "kept"
    assert resolve("toy", flags={"optimizer": name, "policy": "new"}).policy == "new"
    path = tmp_path / "settings.toml"
    path.write_text(f'optimizer = "{name}"\n')
    assert resolve("toy", path).policy == "kept"
    assert resolve("toy", path, sets=["policy=new"]).policy == "new"


def test_only_continual_adam_stacks_policies_together():
    def key(*sets: str) -> str:
        return stack_key(resolve("toy", sets=list(sets)))

    assert key() == key("policy=new")
    assert key("optimizer=rmsprop") == key("optimizer=rmsprop", "lr=0.1", "seed=3")
    assert key("optimizer=rmsprop") != key("optimizer=rmsprop", "policy=new")
    assert key(f"policy={OWN}:soften") != key("policy=kept")
    assert cannot_stack(resolve("toy", sets=["optimizer=rmsprop"])) is None
    assert cannot_stack(resolve("toy", sets=[f"policy={OWN}:soften"])) is None
    told = cannot_stack(resolve("toy", sets=["optimizer=adafactor"]))
    assert told == "adafactor is not known to be elementwise"


def test_a_past_in_fewer_bytes_is_another_run_and_float32_is_the_run_it_was():
    usual = resolve("toy")
    assert "past_dtype" not in usual.as_dict()["moments"]
    assert resolve("toy", sets=["moments.past_dtype=float32"]).id == usual.id
    other = resolve("toy", sets=["moments.past_dtype=uint8"])
    assert other.id != usual.id
    assert other.moments.past_dtype == "uint8"
    assert stack_key(other) == stack_key(usual)
    with pytest.raises(ValueError, match="past_dtype"):
        resolve("toy", sets=["moments.past_dtype=int4"])


@pytest.mark.parametrize("benchmark", paths())
@pytest.mark.parametrize(
    ("variant", "base"),
    [
        ("agem_routed", "agem"),
        ("ewc_routed", "ewc"),
        ("reservoir_l2", "reservoir"),
        ("reservoir_ewc_adam", "reservoir"),
        ("reservoir_coma", "reservoir"),
        ("reservoir_cofima", "reservoir"),
        ("reservoir_cofima", "cofima"),
    ],
)
def test_a_variant_has_the_settings_that_the_benchmark_gives_its_base(benchmark, variant, base):
    own, those = ({o.key: o.default for o in options(benchmark, m)} for m in (variant, base))
    shared = [key for key in those if key.startswith("methods.") and key in own]
    assert shared
    assert {key: own[key] for key in shared} == {key: those[key] for key in shared}


def test_a_derived_method_without_a_setting_of_its_base_is_left_without_it(monkeypatch):
    class Whole(Reservoir):
        name = "whole"

        @dataclass
        class Settings:
            pass

    monkeypatch.setattr(settings, "method_class", lambda method: Whole)
    assert [o.key for o in options("toy", "whole") if o.table == "methods"] == []


@pytest.mark.parametrize("benchmark", ["toy", "wsd", "fsmol"])
def test_another_seed_has_the_id_of_a_run_that_was_asked_for_with_it(benchmark: str) -> None:
    first = resolve(benchmark, flags={"seed": 3})
    other = first.with_seed(41)
    asked = resolve(benchmark, flags={"seed": 41})
    text = json.dumps(asked.as_dict(), sort_keys=True)
    assert other == asked
    assert other.id == asked.id == hashlib.sha256(text.encode()).hexdigest()[:12]
    assert other.id != first.id

"""A stranger's week with the Hugging Face Trainer: resumed, done again, wrong, scored, compared.

Every test is a script of somebody who fine-tunes a tiny Llama once a week: it knows the docs of
`ContinualCallback` and nothing else of us.
"""

from __future__ import annotations

import errno
import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from longtail import ContinualAdamW, save_memory

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments  # noqa: E402

from longtail.integrations.hf import ContinualCallback  # noqa: E402
from longtail.methods import EWC  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::FutureWarning")

MEMORY = "longtail_memory.safetensors"
BEFORE = "longtail_memory.before.safetensors"
SCORES = "longtail_scores.json"


def make_model(seed: int = 0, **settings: Any) -> Any:
    torch.manual_seed(seed)
    shape = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**{**shape, **layers, **settings}))


def rows(week: int, n: int = 16) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(20, (n, 6), generator=torch.Generator().manual_seed(week))
    return [{"input_ids": row, "labels": row} for row in tokens]


def make_trainer(model: Any, folder: Path, week: int, n: int = 16, **settings: Any) -> Any:
    optimizer = settings.pop("optimizer", None) or ContinualAdamW(model.parameters(), lr=1e-2)
    own = settings.pop("eval_dataset", None)
    arguments = TrainingArguments(
        str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **{"save_strategy": "no", "logging_strategy": "no", **settings},
    )
    data: Any = {"train_dataset": rows(week, n), "eval_dataset": own}
    return Trainer(model, arguments, optimizers=(optimizer, None), **data)


def one_week(folder: Path, week: int, name: str | None = None, **settings: Any) -> Any:
    """A process of its own, as far as it can see: all that it starts from lies in the folder."""
    keywords = ("earlier", "metric", "check", "policy", "average", "before", "memory", "names")
    keywords += ("method",)
    given = {key: settings.pop(key) for key in keywords if key in settings}
    start, save = settings.pop("start", folder / "model"), settings.pop("save", True)
    model = LlamaForCausalLM.from_pretrained(start) if start.exists() else make_model()
    trainer = make_trainer(model, folder / "out", week, **settings)
    given = {"memory": folder, **given}
    trainer.add_callback(ContinualCallback(week=name, trainer=trainer, **given))
    trainer.train()
    if save:
        model.save_pretrained(folder / "model")
    return trainer


def memory_of(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors, and what the header says."""
    content = (folder / MEMORY).read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return load_file(folder / MEMORY), json.loads(header["__metadata__"]["memory"])


def assert_same_memory(a: Path, b: Path) -> None:
    (ours, told), (theirs, other) = memory_of(a), memory_of(b)
    assert told["parameters"] == other["parameters"]
    assert told["tasks"] == other["tasks"]
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def steps_and_tasks(folder: Path) -> tuple[int, int]:
    told = memory_of(folder)[1]
    return max(p["steps"] for p in told["parameters"].values()), told["tasks"]


# ---- a checkpoint of last week


def test_last_weeks_finished_checkpoint_does_not_swallow_the_first_steps_of_a_longer_week(
    tmp_path: Path,
):
    """630 of 730 steps were trained; nobody was told."""
    model = make_model()
    trainer = make_trainer(model, tmp_path, 1, save_strategy="epoch")
    trainer.add_callback(ContinualCallback())
    trainer.train()
    trainer = make_trainer(model, tmp_path, 2, n=40, save_strategy="epoch")
    trainer.add_callback(ContinualCallback())
    with pytest.raises(
        ValueError, match=r"checkpoint-8 .* ended.* skip the first 8 steps"
    ) as error:
        trainer.train(resume_from_checkpoint=True)
    assert "give each week a folder of its own" in str(error.value)
    assert steps_and_tasks(tmp_path) == (8, 1)


def test_a_week_goes_on_from_its_own_checkpoint_and_from_no_other(tmp_path: Path):
    class Killed(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 6:
                raise KeyboardInterrupt

    settings = {"save_strategy": "steps", "save_steps": 4}
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
        one_week(tmp_path / folder, 1, "monday")
    one_week(tmp_path / "whole", 2, "tuesday", save=False, **settings)
    model = LlamaForCausalLM.from_pretrained(tmp_path / "killed" / "model")
    trainer = make_trainer(model, tmp_path / "killed" / "out", 2, **settings)
    trainer.add_callback(ContinualCallback(memory=tmp_path / "killed", week="tuesday"))
    trainer.add_callback(Killed())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    for name, works in (("wednesday", False), ("tuesday", True)):
        trainer = make_trainer(make_model(), tmp_path / "killed" / "out", 2, **settings)
        trainer.add_callback(ContinualCallback(memory=tmp_path / "killed", week=name))
        if works:
            trainer.train(resume_from_checkpoint=True)
        else:
            with pytest.raises(ValueError, match="is of 'tuesday', and this is 'wednesday'"):
                trainer.train(resume_from_checkpoint=True)
    assert_same_memory(tmp_path / "whole", tmp_path / "killed")


# ---- a week that is done again


@pytest.mark.parametrize("named", [True, False])
def test_a_week_that_is_done_again_counts_once(tmp_path: Path, named: bool):
    """The process died after the memory was written and before the model was."""
    once, twice = tmp_path / "once", tmp_path / "twice"
    names = ["2026-W01", "2026-W02", "2026-W03"] if named else [None] * 3
    for week in (1, 2, 3):
        one_week(once, week, names[week - 1])
    one_week(twice, 1, names[0], save=False)
    one_week(twice, 1, names[0])
    one_week(twice, 2, names[1], save=False)
    one_week(twice, 2, names[1], save=False)
    one_week(twice, 2, names[1])
    one_week(twice, 3, names[2])
    assert_same_memory(once, twice)
    assert steps_and_tasks(twice) == (24, 3)
    assert (twice / BEFORE).is_file()


def test_where_each_week_has_a_folder_of_its_own_the_last_one_keeps_the_memory(tmp_path: Path):
    one_week(tmp_path / "shared", 1)
    one_week(tmp_path / "shared", 2)
    one_week(tmp_path / "w1", 1, "w1")
    for _ in range(2):
        one_week(tmp_path / "w2", 2, "w2", before=tmp_path / "w1", start=tmp_path / "w1" / "model")
    assert_same_memory(tmp_path / "shared", tmp_path / "w2")
    assert not (tmp_path / "w2" / BEFORE).exists()
    with pytest.raises(FileNotFoundError, match=r"There is no memory at .*w7"):
        one_week(tmp_path / "w3", 3, before=tmp_path / "w7")


def test_weights_that_do_not_belong_to_the_memory_are_an_error_with_a_way_out(tmp_path: Path):
    one_week(tmp_path, 1, "first")
    one_week(tmp_path, 2, "second")
    before = (tmp_path / MEMORY).read_bytes()
    make_model(seed=7).save_pretrained(tmp_path / "other")
    for name, words in (
        ("third", r"is of 'second', .* ended with: model\.embed_tokens\.weight differs"),
        ("second", r"of 'second', and to do it again .*: model\.embed_tokens\.weight differs"),
        (None, r"is of 'second', .* ended with: model\.embed_tokens\.weight differs"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            one_week(tmp_path, 3, name, start=tmp_path / "other")
        assert "check=False takes the memory as it is" in str(error.value)
    with pytest.raises(ValueError, match="They are those it ended with: is this another week"):
        one_week(tmp_path, 3, "second")
    assert (tmp_path / MEMORY).read_bytes() == before
    one_week(tmp_path, 3, "third", start=tmp_path / "other", check=False)
    assert steps_and_tasks(tmp_path) == (24, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_that_were_saved_in_fewer_bytes_are_the_same_weights(
    tmp_path: Path, dtype: torch.dtype
):
    trainer = one_week(tmp_path, 1, "first")
    trainer.model.to(dtype).save_pretrained(tmp_path / "small")
    with torch.no_grad():
        trainer.model.lm_head.weight[::2] *= 1.05
    trainer.model.save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=r"lm_head\.weight differs"):
        one_week(tmp_path, 2, "second", start=tmp_path / "other")
    one_week(tmp_path, 2, "second", start=tmp_path / "small")
    assert steps_and_tasks(tmp_path) == (16, 2)


def test_a_vocabulary_that_has_grown_is_no_other_model(tmp_path: Path):
    trainer = one_week(tmp_path, 1, "first", average="task")
    trainer.model.resize_token_embeddings(24)
    trainer.model.save_pretrained(tmp_path / "grown")
    trainer = one_week(tmp_path, 2, "second", start=tmp_path / "grown", average="task")
    assert memory_of(tmp_path)[0]["past_exp_avg_sq/model.embed_tokens.weight"].shape == (24, 8)
    average = load_file(tmp_path / "longtail_average.safetensors")
    assert average["model.embed_tokens.weight"].shape == (24, 8)


def test_the_average_and_the_scores_of_a_week_done_again_count_once(tmp_path: Path):
    for folder, repeats in (("once", 1), ("twice", 2)):
        home = tmp_path / folder
        for week in (1, 2, 3):
            earlier = {f"w{w}": rows(w) for w in range(1, week)}
            for repeat in range(repeats):
                last = repeat == repeats - 1
                settings = {"earlier": earlier, "eval_dataset": rows(week), "save": last}
                one_week(home, week, f"w{week}", average="task", **settings)
    a, b = (load_file(tmp_path / f / "longtail_average.safetensors") for f in ("once", "twice"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    a, b = (json.loads((tmp_path / f / SCORES).read_text()) for f in ("once", "twice"))
    assert a == b
    assert [week["after"] for week in b["weeks"]] == ["w1", "w2", "w3"]


# ---- all that lies beside the model


BESIDE = (MEMORY, SCORES, "longtail_average.safetensors", "longtail_method.pt")
ALL = {"average": "task", "method": functools.partial(EWC, strength=2.0)}


def test_what_a_week_writes_goes_through_no_link(tmp_path: Path):
    one_week(tmp_path / "m", 1, "w1", earlier={}, eval_dataset=rows(1), **ALL)
    mine = {}
    for name in BESIDE:  # somebody keeps the files elsewhere
        place = (tmp_path / "m" / name).rename(tmp_path / f"mine {name}")
        mine[place] = place.read_bytes()
        (tmp_path / "m" / name).symlink_to(place)
    one_week(tmp_path / "m", 2, "w2", earlier={"w1": rows(1)}, eval_dataset=rows(2), **ALL)
    assert {place: place.read_bytes() for place in mine} == mine
    assert [name for name in BESIDE if (tmp_path / "m" / name).is_symlink()] == []
    assert steps_and_tasks(tmp_path / "m") == (16, 2)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")
@pytest.mark.parametrize("name", BESIDE)
def test_a_disk_that_fills_up_spoils_no_file_of_last_week(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    one_week(tmp_path, 1, "w1", earlier={}, eval_dataset=rows(1), **ALL)
    before, names = (tmp_path / name).read_bytes(), {path.name for path in tmp_path.iterdir()}
    sync = os.fsync

    def full(descriptor: int) -> None:
        if f".{name}." in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: .*{name}"):
        one_week(tmp_path, 2, "w2", earlier={"w1": rows(1)}, eval_dataset=rows(2), **ALL)
    assert (tmp_path / name).read_bytes() == before
    further = {path.name for path in tmp_path.iterdir()} - names
    assert all(".before." in name for name in further)  # of the week before, and no draft


# ---- what is wrong is told before the first step


def untrained(trainer: Any, folder: Path) -> bool:
    return trainer.state.global_step == 0 and not (folder / MEMORY).exists()


def test_an_optimizer_made_before_the_vocabulary_grew_is_noticed_at_once(tmp_path: Path):
    model = make_model()
    optimizer = ContinualAdamW(model.parameters(), lr=1e-2)
    model.resize_token_embeddings(24)
    trainer = make_trainer(model, tmp_path, 1, optimizer=optimizer)
    trainer.add_callback(ContinualCallback())
    with pytest.raises(ValueError, match=r"lacks 1 parameter \(lm_head\.weight 24x8\)") as error:
        trainer.train()
    assert "has 1 parameter (20x8) that the model has not" in str(error.value)
    assert untrained(trainer, tmp_path)


def test_a_metric_that_the_trainer_does_not_give_is_noticed_at_once(tmp_path: Path):
    model = make_model()
    trainer = make_trainer(model, tmp_path, 1, eval_dataset=rows(1))
    callback = ContinualCallback(earlier={}, metric="accuracy", trainer=trainer)
    trainer.add_callback(callback)
    with pytest.raises(ValueError, match=r"Invalid metric: 'accuracy', the Trainer gives loss$"):
        trainer.train()
    assert untrained(trainer, tmp_path)


def test_data_that_cannot_be_evaluated_are_noticed_at_once(tmp_path: Path):
    model = make_model()
    trainer = make_trainer(model, tmp_path, 1)
    earlier = {"good": rows(3), "bad": [{"text": "hello"}], "none": []}
    trainer.add_callback(ContinualCallback(earlier=earlier, trainer=trainer))
    with pytest.raises(ValueError, match="The data of 'bad' cannot be scored by 'loss'"):
        trainer.train()
    assert untrained(trainer, tmp_path)


class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Rows that come from somewhere, nobody knows how many."""

    def __iter__(self) -> Any:
        return iter(rows(5, 10))


def test_the_look_ahead_changes_nothing_and_takes_a_stream(tmp_path: Path):
    """No random number, log entry or callback more than without it."""
    finals, logs = [], []
    for folder in ("plain", "scored"):
        model = make_model(attention_dropout=0.3)
        settings = {"eval_dataset": rows(1), "logging_strategy": "epoch"}
        trainer = make_trainer(model, tmp_path / folder, 1, **settings)
        earlier = {"a": Stream(), "b": rows(6)} if folder == "scored" else None
        given = {"earlier": earlier, "trainer": trainer} if earlier else {}
        trainer.add_callback(ContinualCallback(**given))
        trainer.train()
        finals.append([p.detach().clone() for p in model.parameters()])
        logs.append([entry for entry in trainer.state.log_history if "loss" in entry])
    for a, b in zip(*finals, strict=True):
        assert torch.equal(a, b)
    assert [entry["loss"] for entry in logs[0]] == [entry["loss"] for entry in logs[1]]
    told = json.loads((tmp_path / "scored" / SCORES).read_text())
    assert told["weeks"][0]["examples"] == {"a": 10, "b": 16, "week 1": 16}


def test_a_memory_path_that_is_wrong_after_week_one_is_an_error(tmp_path: Path):
    """It printed "the first week", and the week was trained without a memory."""
    one_week(tmp_path / "right", 1, "2026-W01", earlier={}, eval_dataset=rows(1))
    start, earlier = tmp_path / "right" / "model", {"2026-W01": rows(1)}
    with pytest.raises(ValueError, match=r"no memory at .*worng.*'2026-W02' is not the first"):
        one_week(tmp_path / "worng", 2, "2026-W02", start=start, earlier=earlier)
    one_week(tmp_path / "worng", 2, "2026-W02", start=start, earlier=earlier, check=False)


def test_wrong_words_are_told_when_the_callback_is_made():
    for given, words in (
        ({"policy": "keep"}, "Invalid policy: 'keep', must be one of 'continual', 'kept', 'new'"),
        ({"dtype": "float16"}, "Invalid dtype: float16"),
        ({"grow": "max"}, "Invalid grow: 'max'"),
        ({"names": 5}, "Invalid names: 5"),
        ({"week": " "}, "Invalid week: ' '"),
    ):
        with pytest.raises(ValueError, match=words):
            ContinualCallback(**given)  # type: ignore[arg-type]


# ---- scores


def last_logged(trainer: Any) -> dict[str, float]:
    return next(entry for entry in reversed(trainer.state.log_history) if "RP" in entry)


def test_a_loss_that_rises_is_forgetting_and_is_called_so(tmp_path: Path, capsys: Any):
    one_week(tmp_path, 1, "w1", earlier={}, eval_dataset=rows(1))
    model = LlamaForCausalLM.from_pretrained(tmp_path / "model")
    own = make_trainer(model, tmp_path / "x", 1).evaluate(rows(1))["eval_loss"]
    capsys.readouterr()
    trainer = one_week(tmp_path, 2, "w2", earlier={"w1": rows(1)}, eval_dataset=rows(2))
    logged = last_logged(trainer)
    now = make_trainer(trainer.model, tmp_path / "x", 1).evaluate(rows(1))["eval_loss"]
    assert now > own
    assert logged["FGT"] == pytest.approx(now - own, abs=1e-5)
    assert logged["BWT"] == pytest.approx(own - now, abs=1e-5)
    printed = capsys.readouterr().out
    assert f"earlier weeks forgot {now - own:.4g} nats since they were first scored" in printed


def test_what_was_not_measured_is_not_logged(tmp_path: Path):
    """It was logged as 0.0: no data of this week, or names that do not meet."""
    trainer = one_week(tmp_path / "a", 1, "2026-W01", earlier={}, eval_dataset=rows(1))
    assert last_logged(trainer).keys().isdisjoint({"BWT", "FGT"})
    settings = {"earlier": {"week 1": rows(1)}, "eval_dataset": rows(2)}
    trainer = one_week(tmp_path / "a", 2, "2026-W02", **settings)
    assert last_logged(trainer).keys().isdisjoint({"BWT", "FGT"})
    one_week(tmp_path / "b", 1, "w1", earlier={})
    trainer = one_week(tmp_path / "b", 2, "w2", earlier={"w1": rows(1)})
    assert last_logged(trainer).keys().isdisjoint({"BWT", "FGT"})
    trainer = one_week(tmp_path / "b", 3, "w3", earlier={"w1": rows(1), "w2": rows(2)})
    assert {"BWT", "FGT"} <= last_logged(trainer).keys()  # w1 was scored twice


def test_scores_of_another_metric_are_not_mixed_in(tmp_path: Path):
    one_week(tmp_path, 1, "w1", earlier={}, eval_dataset=rows(1))
    with pytest.raises(ValueError, match=r"has scores of 'loss' \(less is better\), and not of"):
        one_week(tmp_path, 2, "w2", earlier={"w1": rows(1)}, metric="runtime")
    assert steps_and_tasks(tmp_path) == (8, 1)


# ---- baselines


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=1e-2),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.NAdam(p, lr=1e-2),
        lambda p: torch.optim.Adafactor(p, lr=1e-2),
    ],
    ids=["AdamW", "SGD", "NAdam", "Adafactor"],
)
def test_kept_is_one_optimizer_that_never_went_away(tmp_path: Path, make: Any):
    settings = {"lr_scheduler_type": "constant"}
    whole = make_model()
    optimizer = make(whole.parameters())
    for week in (1, 2):
        make_trainer(whole, tmp_path / "x", week, optimizer=optimizer, **settings).train()

    for week in (1, 2):
        start = tmp_path / "kept" / "model"
        model = LlamaForCausalLM.from_pretrained(start) if week == 2 else make_model()
        optimizer = make(model.parameters())
        trainer = make_trainer(model, tmp_path / "x", week, optimizer=optimizer, **settings)
        trainer.add_callback(ContinualCallback(memory=tmp_path / "kept", policy="kept"))
        trainer.train()
        model.save_pretrained(start)
    for a, b in zip(whole.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_new_is_made_anew_every_week_also_in_one_process(tmp_path: Path):
    models = []
    for again in (False, True):
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for week in (1, 2):
            if again:
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            trainer = make_trainer(model, tmp_path / str(again), week, optimizer=optimizer)
            trainer.add_callback(ContinualCallback(policy="new"))
            trainer.train()
        models.append(model)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_policies_are_scored_alike_and_do_not_take_each_others_files(tmp_path: Path):
    for policy in ("continual", "kept", "new"):
        for week in (1, 2):
            start = tmp_path / policy / "model"
            model = LlamaForCausalLM.from_pretrained(start) if week == 2 else make_model()
            optimizer: Any = (
                ContinualAdamW(model.parameters(), lr=1e-2)
                if policy == "continual"
                else torch.optim.AdamW(model.parameters(), lr=1e-2)
            )
            trainer = make_trainer(
                model, tmp_path / "x", week, optimizer=optimizer, eval_dataset=rows(week)
            )
            earlier = {f"w{w}": rows(w) for w in range(1, week)}
            settings = {"memory": tmp_path / policy, "policy": policy, "earlier": earlier}
            trainer.add_callback(ContinualCallback(**settings, week=f"w{week}", trainer=trainer))
            trainer.train()
            model.save_pretrained(start)
        told = json.loads((tmp_path / policy / SCORES).read_text())
        assert [sorted(week["scores"]) for week in told["weeks"]] == [["w1"], ["w1", "w2"]]
    for policy in ("kept", "new"):
        with pytest.raises(ValueError, match=f"is of policy='{policy}', and this week of 'contin"):
            one_week(tmp_path / policy, 3)


def test_kept_state_grows_with_the_vocabulary_and_a_week_done_again_counts_once(tmp_path: Path):
    def week(number: int, start: Path | None, save: Path) -> Any:
        model = LlamaForCausalLM.from_pretrained(start) if start else make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        trainer = make_trainer(model, tmp_path / "x", number, optimizer=optimizer)
        trainer.add_callback(
            ContinualCallback(memory=tmp_path / "kept", policy="kept", week=f"w{number}")
        )
        trainer.train()
        model.resize_token_embeddings(20 + 2 * number)
        model.save_pretrained(save)
        return optimizer

    week(1, None, tmp_path / "m1")
    for _ in range(2):
        optimizer = week(2, tmp_path / "m1", tmp_path / "m2")
        assert {int(state["step"]) for state in optimizer.state.values()} == {16}
    optimizer = week(3, tmp_path / "m2", tmp_path / "m3")
    assert {int(state["step"]) for state in optimizer.state.values()} == {24}


def test_a_memory_saved_by_hand_is_compared_with_the_weights_it_was_saved_with(tmp_path: Path):
    model = make_model()
    optimizer = ContinualAdamW(model.parameters(), lr=1e-2)
    model(
        input_ids=rows(1)[0]["input_ids"][None], labels=rows(1)[0]["labels"][None]
    ).loss.backward()
    optimizer.step()
    optimizer.end_task()
    save_memory(optimizer, tmp_path, model)
    with pytest.raises(ValueError, match=r"after 1 task, .* does not say what it began from"):
        one_week(tmp_path, 2, start=tmp_path / "none")
    model.save_pretrained(tmp_path / "model")
    one_week(tmp_path, 2)
    assert steps_and_tasks(tmp_path) == (9, 2)

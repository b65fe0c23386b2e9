"""`ContinualCallback` in a real `transformers.Trainer`, a tiny BERT on the CPU."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import longtail.methods
import longtail.tasks
from helpers import resumed_weeks
from longtail import ContinualAdamW

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import BertConfig, BertForSequenceClassification, Trainer  # noqa: E402
from transformers import TrainingArguments as Arguments  # noqa: E402

from longtail.integrations.foreign_loop import Logits  # noqa: E402
from longtail.integrations.hf import ContinualCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::FutureWarning")


def make_model(tokens: int = 20) -> Any:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokens,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
        num_labels=2,
    )
    return BertForSequenceClassification(config)


def rows(week: int, n: int = 16) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(week)
    tokens = torch.randint(20, (n, 6), generator=generator)
    return [{"input_ids": row, "labels": (row[0] + week) % 2} for row in tokens]


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def make_trainer(model: Any, folder: Path, week: int, **settings: Any) -> tuple[Trainer, Any]:
    optimizer = ContinualAdamW(model.parameters(), lr=1e-3)
    settings = {"num_train_epochs": 2, "save_strategy": "epoch", **settings}
    arguments = Arguments(
        str(folder),
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **settings,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=rows(week),  # type: ignore[arg-type]
        eval_dataset=rows(week),  # type: ignore[arg-type]
        optimizers=(optimizer, None),  # type: ignore[arg-type]
        compute_metrics=accuracy,
    )
    return trainer, optimizer


def past_steps(model: Any, optimizer: Any) -> int:
    return int(optimizer.state[model.classifier.weight]["past_steps"])


def test_three_weeks_each_with_a_new_trainer_and_optimizer(tmp_path: Path, capsys: Any) -> None:
    model = make_model()
    for week in (1, 2, 3):
        trainer, optimizer = make_trainer(model, tmp_path / f"week{week}", week)
        trainer.add_callback(ContinualCallback(memory=tmp_path / "model"))
        trainer.train()
        assert past_steps(model, optimizer) == 8 * week
        assert f"tasks seen: {week}\n" in repr(optimizer)
    printed = capsys.readouterr().out
    assert printed.count("this is the first week") == 1
    assert "memory of 2 tasks, 16 steps from" in printed
    assert (tmp_path / "model" / "longtail_memory.safetensors").is_file()


def test_the_last_checkpoint_has_the_boundary(tmp_path: Path) -> None:
    """Row 2 of the table: it was written before, with no task seen and no past step."""
    model = make_model()
    trainer, _ = make_trainer(model, tmp_path, 1)
    trainer.add_callback(ContinualCallback())
    trainer.train()
    checkpoint = torch.load(tmp_path / "checkpoint-8" / "optimizer.pt", weights_only=True)
    assert int(checkpoint["param_groups"][0]["tasks_seen"]) == 1
    assert {int(state["past_steps"]) for state in checkpoint["state"].values()} == {8}
    assert (tmp_path / "checkpoint-8" / "longtail_memory.safetensors").is_file()
    assert (tmp_path / "longtail_memory.safetensors").is_file()


def test_a_week_resumed_half_way_ends_like_one_that_was_not(tmp_path: Path) -> None:
    results = []
    for folder in ("whole", "resumed"):
        model = make_model()
        first, _ = make_trainer(model, tmp_path / "first", 1, save_strategy="no")
        first.add_callback(ContinualCallback(memory=tmp_path / folder))
        first.train()
        start = {name: x.clone() for name, x in model.state_dict().items()}
        trainer, optimizer = make_trainer(model, tmp_path / folder, 2)
        trainer.add_callback(ContinualCallback(memory=tmp_path / folder))
        trainer.train()
        if folder == "resumed":
            model = make_model()
            model.load_state_dict(start)
            trainer, optimizer = make_trainer(model, tmp_path / folder, 2)
            trainer.add_callback(ContinualCallback(memory=tmp_path / folder))
            trainer.train(resume_from_checkpoint=str(tmp_path / folder / "checkpoint-4"))
        assert past_steps(model, optimizer) == 16
        results.append(optimizer.state[model.classifier.weight]["past_exp_avg_sq"])
    torch.testing.assert_close(*results)


def test_a_checkpoint_that_knows_no_task_beside_a_memory_is_told(tmp_path: Path) -> None:
    model = make_model()
    trainer, _ = make_trainer(model, tmp_path / "alone", 1)
    trainer.train()  # without the callback: its checkpoints know no task
    first, _ = make_trainer(model, tmp_path / "first", 1)
    first.add_callback(ContinualCallback(memory=tmp_path))
    first.train()
    trainer, _ = make_trainer(model, tmp_path / "alone", 2)
    trainer.add_callback(ContinualCallback(memory=tmp_path))
    with pytest.warns(UserWarning, match="optimizer has seen no task, and .* remembers 1"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "alone" / "checkpoint-4"))


def test_one_trainer_that_trains_twice(tmp_path: Path) -> None:
    model = make_model()
    trainer, optimizer = make_trainer(model, tmp_path, 1)
    trainer.add_callback(ContinualCallback())
    trainer.train()
    trainer.train_dataset = rows(2)  # type: ignore[assignment]
    trainer.train()
    assert past_steps(model, optimizer) == 16


def test_a_grown_vocabulary(tmp_path: Path, capsys: Any) -> None:
    """Row 5 of the table: it loaded, then the first step raised."""
    model = make_model()
    for week in (1, 2):
        trainer, optimizer = make_trainer(model, tmp_path, week)
        trainer.add_callback(ContinualCallback())
        trainer.train()
        if week == 1:
            model.resize_token_embeddings(24)
    assert (
        "1 grown (bert.embeddings.word_embeddings.weight 20x8 -> 24x8)" in capsys.readouterr().out
    )
    past = optimizer.state[model.bert.embeddings.word_embeddings.weight]["past_exp_avg_sq"]
    assert past.shape == (24, 8)


def test_earlier_weeks_are_scored_and_logged(tmp_path: Path) -> None:
    model = make_model()
    seen: dict[str, Any] = {}
    logged: list[dict[str, float]] = []

    class Logger(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            logged.append(dict(logs))

    for week in (1, 2, 3):
        trainer, _ = make_trainer(model, tmp_path / str(week), week, save_strategy="no")
        trainer.add_callback(Logger())
        callback = ContinualCallback(
            memory=tmp_path, earlier=seen, metric="accuracy", trainer=trainer
        )
        trainer.add_callback(callback)
        trainer.train()
        seen[f"week {week}"] = rows(week)
    found = next(entry for entry in reversed(logged) if "RP" in entry)
    assert {"RP", "BWT", "FGT"} <= found.keys()
    scores = [entry for entry in logged if "eval_week_1_accuracy" in entry][-1]
    others = [
        next(e[f"eval_week_{w}_accuracy"] for e in logged[::-1] if f"eval_week_{w}_accuracy" in e)
        for w in (2, 3)
    ]
    expected = (scores["eval_week_1_accuracy"] + sum(others)) / 3
    assert found["RP"] == pytest.approx(expected)
    with pytest.raises(ValueError, match="earlier= is evaluated by the Trainer"):
        ContinualCallback(earlier=seen)


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    trainer, _ = make_trainer(make_model(), tmp_path, 1)
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters())  # type: ignore[union-attr]
    trainer.add_callback(ContinualCallback())
    with pytest.raises(TypeError, match="and no ContinualAdamW: pass optimizers="):
        trainer.train()


METHODS = {
    "EWC": {"strength": 1e5, "fisher": "batch"},
    "EWCPlusPlus": {"strength": 1e5},
    "Reservoir": {"buffer": 10},
    "DERPlusPlus": {"buffer": 10},
    "AGEM": {"buffer": 10},
    "LwF": {},
}


def two_weeks(folder: Path, method: Any = None) -> Iterator[tuple[Any, ContinualCallback]]:
    """A model and the callback of its trainer, after each week."""
    model = make_model()
    for week in (1, 2):
        trainer, optimizer = make_trainer(model, folder / str(week), week, save_strategy="no")
        callback = ContinualCallback(memory=folder, method=method, trainer=trainer)
        trainer.add_callback(callback)
        trainer.train()
        assert past_steps(model, optimizer) == 8 * week
        yield model, callback


@pytest.fixture(scope="module")
def without_a_method(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model after two weeks of Continual AdamW alone."""
    *_, (model, _) = two_weeks(tmp_path_factory.mktemp("finetune"))
    return model


@pytest.mark.parametrize("name", METHODS)
def test_methods_in_the_trainers_loop(tmp_path: Path, name: str, without_a_method: Any) -> None:
    """Row 8 of the table: they stopped at our own loop. Two weeks, two processes' worth of it."""
    kind = getattr(longtail.methods, name)
    for model, callback in two_weeks(tmp_path, functools.partial(kind, **METHODS[name])):
        method = callback.in_loop.method  # type: ignore[union-attr]
        assert isinstance(method, kind)
        stored = method.state_dict()
        assert "buffer" not in stored or len(method.buffer) == 10
        assert "sum_F" not in stored or method.sum_F[0].abs().sum() > 0
        assert "weight" not in stored or method.weight == 1
        mine = model.classifier.weight
    assert not torch.allclose(mine, without_a_method.classifier.weight, rtol=1e-4)


def test_a_method_does_in_the_trainer_what_it_does_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    model = make_model()
    start = {name: x.clone() for name, x in model.state_dict().items()}
    settings = {"num_train_epochs": 1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer, _ = make_trainer(model, tmp_path, 1, save_strategy="no", **settings)
    trainer.get_train_dataloader = lambda: trainer.accelerator.prepare(  # type: ignore[method-assign]
        torch.utils.data.DataLoader(rows(1), batch_size=4)  # type: ignore[arg-type]
    )
    make = functools.partial(longtail.methods.Reservoir, buffer=6, seed=3)
    trainer.add_callback(ContinualCallback(method=make, trainer=trainer))
    trainer.train()

    mine = make_model()
    mine.load_state_dict(start)
    for module in mine.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    method = make(Logits(mine), longtail.tasks.CLASSIFICATION)
    optimizer = ContinualAdamW(mine.parameters(), lr=1e-3)
    mine.train()
    for batch in torch.utils.data.DataLoader(rows(1), batch_size=4):  # type: ignore[arg-type]
        pair = {"input_ids": batch["input_ids"]}, batch["labels"]
        optimizer.zero_grad()
        method.loss(pair).backward()
        method.after_backward()
        optimizer.step()
        method.observe(pair)
    for a, b in zip(model.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_what_a_method_cannot_do_is_refused_with_a_reason(tmp_path: Path) -> None:
    make = functools.partial(longtail.methods.Reservoir, buffer=4)
    with pytest.raises(ValueError, match="method= is called by the Trainer: make it first"):
        ContinualCallback(method=make)
    trainer, _ = make_trainer(make_model(), tmp_path, 1, save_strategy="no")
    uneven = [{**row, "input_ids": row["input_ids"][: 5 + i // 8]} for i, row in enumerate(rows(1))]
    trainer.train_dataset = uneven  # type: ignore[assignment]
    trainer.get_train_dataloader = lambda: trainer.accelerator.prepare(  # type: ignore[method-assign]
        torch.utils.data.DataLoader(uneven, batch_size=4)  # type: ignore[arg-type]
    )
    trainer.add_callback(ContinualCallback(method=make, trainer=trainer))
    with pytest.raises(ValueError, match="stores rows of one length, and batches have"):
        trainer.train()

    class Odd(type(make_model())):  # type: ignore[misc]
        def forward(self, input_ids: Any, labels: Any = None) -> Any:
            found = super().forward(input_ids, labels=labels)
            if found.loss is not None:
                found.loss = 3 * found.loss
            return found

    trainer, _ = make_trainer(Odd(make_model().config), tmp_path, 1, save_strategy="no")
    trainer.add_callback(ContinualCallback(method=make, trainer=trainer))
    with pytest.raises(
        ValueError, match=r"and the cross-entropy of its logits .*: give an objective"
    ):
        trainer.train()


def test_an_average_of_the_weights_over_weeks(tmp_path: Path) -> None:
    model = make_model()
    ends, callback = [], None
    for week in (1, 2, 3):
        trainer, _ = make_trainer(model, tmp_path / f"week{week}", week, save_strategy="no")
        callback = ContinualCallback(memory=tmp_path / "model", average="task")
        trainer.add_callback(callback)
        trainer.train()
        ends.append(model.classifier.weight.detach().clone())
    assert callback is not None
    assert callback.average is not None
    assert callback.average.tasks == 3
    with callback.average.applied():
        torch.testing.assert_close(model.classifier.weight.detach(), torch.stack(ends).mean(0))
    assert torch.equal(model.classifier.weight, ends[-1])


def test_a_resumed_week_goes_on_with_its_average(tmp_path: Path) -> None:
    found = []
    for resume in (None, str(tmp_path / "week" / "checkpoint-4")):
        model = make_model()
        trainer, _ = make_trainer(model, tmp_path / "week", 1)
        callback = ContinualCallback(memory=tmp_path / f"memory{len(found)}", average="ema")
        trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=resume)
        assert callback.average is not None
        with callback.average.applied():
            found.append(model.classifier.weight.detach().clone())
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("make", resumed_weeks.METHODS)
def test_a_resumed_week_goes_on_with_what_its_method_knows(tmp_path: Path, make) -> None:
    found = []
    for resume in (None, str(tmp_path / "week" / "checkpoint-4")):
        trainer, _ = make_trainer(make_model(), tmp_path / "week", 1)
        memory = tmp_path / f"memory{len(found)}"
        callback = ContinualCallback(memory=memory, method=make, trainer=trainer)
        trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=resume)
        found.append(resumed_weeks.known(callback.in_loop))
    resumed_weeks.check_same(*found)

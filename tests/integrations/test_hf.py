"""`ContinualCallback` in a real `transformers.Trainer`, a tiny BERT on the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from longtail import ContinualAdamW

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import BertConfig, BertForSequenceClassification, Trainer  # noqa: E402
from transformers import TrainingArguments as Arguments  # noqa: E402

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


def test_a_resume_of_zero_steps_is_told(tmp_path: Path) -> None:
    """Row 2 of the table: `resume_from_checkpoint` on new data did 0 steps without a word."""
    model = make_model()
    trainer, _ = make_trainer(model, tmp_path, 1)
    trainer.add_callback(ContinualCallback())
    trainer.train()
    trainer, optimizer = make_trainer(model, tmp_path, 2)
    trainer.add_callback(ContinualCallback())
    with pytest.warns(UserWarning, match="at step 8 of 8, so this trains 0 steps"):
        trainer.train(resume_from_checkpoint=True)
    assert past_steps(model, optimizer) == 8


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

"""`ContinualCallback` in a real Lightning Trainer; `configure_optimizers` as everybody has it."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import longtail.methods
from helpers import resumed_weeks
from longtail import ContinualAdamW, end_task, load_memory, save_memory
from longtail.tasks import CLASSIFICATION, TensorExamples

pytest.importorskip("lightning")

from lightning.fabric import Fabric
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from longtail.integrations.lightning import ContinualCallback

pytestmark = pytest.mark.filterwarnings("ignore")


class Model(LightningModule):
    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", self.training_step(batch, 0))

    def configure_optimizers(self) -> Any:
        optimizer = ContinualAdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
        return [optimizer], [schedule]


def data(week: int) -> DataLoader:
    generator = torch.Generator().manual_seed(week)
    x = torch.randn(16, 4, generator=generator)
    return DataLoader(TensorDataset(x, (x[:, week % 4] > 0).long()), batch_size=4)


def make_trainer(folder: Path, *callbacks: Any, **settings: Any) -> Trainer:
    settings = {"max_epochs": 2, "logger": False, **settings}
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )


def remembered(trainer: Trainer) -> tuple[int, int]:
    optimizer: Any = trainer.optimizers[0]
    state = optimizer.state[next(trainer.lightning_module.parameters())]
    return int(optimizer.param_groups[0]["tasks_seen"]), int(state["past_steps"])


def test_three_fits_with_the_usual_configure_optimizers(tmp_path: Path) -> None:
    """Row 3 of the table: a new optimizer each time, `tasks_seen` 1, 1, 1."""
    model = Model()
    found = []
    for week in (1, 2, 3):
        trainer = make_trainer(tmp_path, ContinualCallback(), enable_checkpointing=False)
        trainer.fit(model, data(week))
        found.append(remembered(trainer))
        assert trainer.optimizers[0].param_groups[0]["initial_lr"] == 1e-2
    assert found == [(1, 8), (2, 16), (3, 24)]


@pytest.mark.parametrize("validated", [False, True])
def test_the_last_checkpoint_has_the_boundary(tmp_path: Path, validated: bool) -> None:
    """Row 2 of the table: `last.ckpt` was written before, with no task seen and no past step."""
    checkpoint = ModelCheckpoint(
        tmp_path, save_last=True, monitor="val_loss" if validated else None
    )
    trainer = make_trainer(tmp_path, checkpoint, ContinualCallback(memory=tmp_path / "memory"))
    trainer.fit(Model(), data(1), data(1) if validated else None)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=False)
    state = saved["optimizer_states"][0]
    assert int(state["param_groups"][0]["tasks_seen"]) == 1
    assert {int(entry["past_steps"]) for entry in state["state"].values()} == {8}
    assert (tmp_path / "memory" / "longtail_memory.safetensors").is_file()


def test_a_week_resumed_half_way_ends_like_one_that_was_not(tmp_path: Path) -> None:
    results = []
    for kind in ("whole", "resumed"):
        folder = tmp_path / kind
        model = Model()
        trainer = make_trainer(folder, ContinualCallback(), enable_checkpointing=False)
        trainer.fit(model, data(1))
        checkpoint = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
        trainer = make_trainer(folder, checkpoint, ContinualCallback())
        trainer.fit(model, data(2))
        if kind == "resumed":
            model = Model()
            trainer = make_trainer(folder, ContinualCallback(), enable_checkpointing=False)
            trainer.fit(model, data(2), ckpt_path=str(folder / "epoch=0.ckpt"))
        assert remembered(trainer) == (2, 16)
        optimizer: Any = trainer.optimizers[0]
        results.append(optimizer.state[model.body.weight]["past_exp_avg_sq"].clone())
    torch.testing.assert_close(*results)


def test_a_second_fit_of_zero_steps_is_told(tmp_path: Path) -> None:
    model = Model()
    trainer = make_trainer(tmp_path, ContinualCallback(), enable_checkpointing=False)
    trainer.fit(model, data(1))
    with pytest.warns(
        UserWarning, match=r"fit\(\) trained 0 steps: this Trainer is at epoch 2 of 2"
    ):
        trainer.fit(model, data(2))


def test_more_classes_next_week(tmp_path: Path, capsys: Any) -> None:
    model, grown = Model(), Model(classes=3)
    make_trainer(tmp_path, ContinualCallback(), enable_checkpointing=False).fit(model, data(1))
    grown.body = model.body
    trainer = make_trainer(tmp_path, ContinualCallback(), enable_checkpointing=False)
    trainer.fit(grown, data(2))
    assert "2 grown (head.weight 2x4 -> 3x4, head.bias 2 -> 3)" in capsys.readouterr().out
    assert remembered(trainer) == (2, 16)


def test_earlier_weeks_are_scored_and_logged(tmp_path: Path) -> None:
    def correct(module: Any, batch: Any) -> torch.Tensor:
        return (module(batch[0]).argmax(-1) == batch[1]).float()

    model = Model()
    earlier: dict[str, Any] = {}
    for week in (1, 2):
        logger = CSVLogger(tmp_path, name="logs", version=week)
        callback = ContinualCallback(memory=tmp_path, earlier=earlier, score=correct)
        settings: dict[str, Any] = {"logger": logger, "enable_checkpointing": False}
        make_trainer(tmp_path, callback, **settings).fit(model, data(week), data(week))
        earlier[f"week {week}"] = data(week)
    text = (tmp_path / "logs" / "version_2" / "metrics.csv").read_text()
    header, last = text.splitlines()[0].split(","), text.splitlines()[-1].split(",")
    row = dict(zip(header, last, strict=True))
    expected = (float(row["score/week 1"]) + float(row["score/week 2"])) / 2
    assert float(row["RP"]) == pytest.approx(expected)
    assert "BWT" in row
    with pytest.raises(ValueError, match="earlier= needs score="):
        ContinualCallback(earlier={})


def test_another_optimizer_is_refused(tmp_path: Path) -> None:
    class Plain(Model):
        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    with pytest.raises(TypeError, match="to return one ContinualAdamW, and found AdamW"):
        make_trainer(tmp_path, ContinualCallback()).fit(Plain(), data(1))


def test_fabric(tmp_path: Path) -> None:
    """`end_task` and the memory through Fabric's wrappers of model and optimizer."""
    fabric = Fabric(accelerator="cpu")
    plain = Model()
    model, optimizer = fabric.setup(plain, ContinualAdamW(plain.parameters()))
    for batch in fabric.setup_dataloaders(data(1)):
        optimizer.zero_grad()
        fabric.backward(nn.functional.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
    end_task(optimizer)
    save_memory(optimizer, tmp_path, model)
    later = ContinualAdamW(plain.parameters())
    report = load_memory(later, tmp_path, plain)
    assert (report.tasks, report.steps, len(report.loaded)) == (1, 4, 4)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("EWC", {"strength": 5.0}),
        ("EWCPlusPlus", {"strength": 5.0}),
        ("Reservoir", {"buffer": 10}),
        ("DERPlusPlus", {"buffer": 10}),
        ("AGEM", {"buffer": 10}),
        ("SynapticIntelligence", {}),
        ("LwF", {}),
        ("CoMA", {}),
    ],
)
def test_methods_in_lightnings_loop(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    """The same weights as a loop of one's own, over two weeks."""
    make = functools.partial(getattr(longtail.methods, name), **settings)
    model = Model()
    for week in (1, 2):
        callback = ContinualCallback(memory=tmp_path, method=make, objective=CLASSIFICATION)
        trainer = make_trainer(tmp_path, callback, enable_checkpointing=False, max_epochs=1)
        trainer.fit(model, data(week))
    assert remembered(trainer) == (2, 8)

    mine = Model()
    method = make(mine, CLASSIFICATION)
    for week in (1, 2):
        optimizer: Any = mine.configure_optimizers()[0][0]
        method.optimizer = optimizer
        if week == 2:
            load_memory(optimizer, tmp_path / "mine", mine)
        for x, y in data(week):
            optimizer.zero_grad()
            method.loss((x, y)).backward()
            method.after_backward()
            optimizer.step()
            method.observe((x, y))
        method.end_task(TensorExamples(*data(week).dataset.tensors))  # type: ignore[attr-defined]
        optimizer.end_task()
        save_memory(optimizer, tmp_path / "mine", mine)
    for a, b in zip(model.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(ValueError, match="method= needs objective="):
        ContinualCallback(method=make)


def test_an_average_of_the_weights_over_weeks(tmp_path: Path) -> None:
    model, ends = Model(), []
    callback = ContinualCallback()
    for week in (1, 2, 3):
        callback = ContinualCallback(average="task")
        make_trainer(tmp_path, callback, enable_checkpointing=False).fit(model, data(week))
        ends.append(model.head.weight.detach().clone())
    assert callback.average is not None
    assert callback.average.tasks == 3
    with callback.average.applied():
        torch.testing.assert_close(model.head.weight.detach(), torch.stack(ends).mean(0))
    assert torch.equal(model.head.weight, ends[-1])


def test_a_resumed_week_goes_on_with_its_average(tmp_path: Path) -> None:
    found = []
    for resume in (None, str(tmp_path / "epoch=0.ckpt")):
        model, callback = Model(), ContinualCallback(tmp_path / f"{resume is None}", average="ema")
        checkpoint = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        callbacks = [callback] if resume else [checkpoint, callback]
        make_trainer(tmp_path, *callbacks).fit(model, data(1), ckpt_path=resume)
        assert callback.average is not None
        with callback.average.applied():
            found.append(model.head.weight.detach().clone())
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("make", resumed_weeks.METHODS)
def test_a_resumed_week_goes_on_with_what_its_method_knows(tmp_path: Path, make) -> None:
    found = []
    for resume in (None, str(tmp_path / "epoch=0.ckpt")):
        used = {"method": make, "objective": CLASSIFICATION}
        callback = ContinualCallback(tmp_path / f"{resume is None}", **used)
        checkpoint = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        callbacks = [callback] if resume else [checkpoint, callback]
        make_trainer(tmp_path, *callbacks).fit(Model(), data(1), ckpt_path=resume)
        found.append(resumed_weeks.known(callback.in_loop))
    resumed_weeks.check_same(*found)

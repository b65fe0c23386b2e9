"""A stranger's week with Lightning: done again, resumed, of other weights, with AdamW kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from longtail import ContinualAdamW

pytest.importorskip("lightning")

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from longtail.integrations.lightning import ContinualCallback

pytestmark = pytest.mark.filterwarnings("ignore")

MEMORY, SCORES = "longtail_memory.safetensors", "longtail_scores.json"


class Model(LightningModule):
    def __init__(self, make: Any = ContinualAdamW, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net, self.make = nn.Linear(4, 2), make

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, _: int) -> None: ...

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters(), lr=1e-2)


def data(week: int) -> Any:
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(week))
    return DataLoader(TensorDataset(x, (x[:, week % 4] > 0).long()), batch_size=4)


def fit(model: Any, week: int, callback: Any, *others: Any, **settings: Any) -> Any:
    resume = settings.pop("ckpt_path", None)
    trainer = Trainer(
        callbacks=[callback, *others],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 2, "enable_checkpointing": bool(others), **settings},
    )
    trainer.fit(model, data(week), data(week), ckpt_path=resume)
    return trainer


def remembered(folder: Path) -> dict[str, Any]:
    content = (folder / MEMORY).read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return json.loads(header["__metadata__"]["memory"])


def accuracy(module: Any, batch: Any) -> torch.Tensor:
    return (module.net(batch[0]).argmax(-1) == batch[1]).float()


def test_a_week_that_is_done_again_counts_once_and_other_weights_are_refused(tmp_path: Path):
    model = Model()
    fit(model, 1, ContinualCallback(tmp_path, week="w1"))
    start = {name: x.clone() for name, x in model.state_dict().items()}
    for _ in range(2):
        model.load_state_dict(start)
        earlier = {"w1": data(1)}
        settings: dict[str, Any] = {"earlier": earlier, "score": accuracy, "week": "w2"}
        fit(model, 2, ContinualCallback(tmp_path, **settings))
    told = remembered(tmp_path)
    assert told["tasks"] == 2
    assert {p["steps"] for p in told["parameters"].values()} == {16}
    weeks = json.loads((tmp_path / SCORES).read_text())["weeks"]
    assert [week["after"] for week in weeks] == ["w2"]
    with pytest.raises(ValueError, match=r"is of 'w2', .*ended with: net\.weight differs"):
        fit(Model(seed=7), 3, ContinualCallback(tmp_path, week="w3"))


def test_a_finished_checkpoint_is_not_resumed_with_another_week(tmp_path: Path):
    checkpoint = ModelCheckpoint(tmp_path, save_last=True)
    fit(Model(), 1, ContinualCallback(tmp_path / "m"), checkpoint)
    last = str(tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=r"of 'week 1', which has ended: .* skip the first 8 st"):
        fit(Model(), 2, ContinualCallback(tmp_path / "m"), max_epochs=5, ckpt_path=last)


def test_a_score_that_cannot_be_had_is_told_before_the_first_step(tmp_path: Path):
    def broken(module: Any, batch: Any) -> torch.Tensor:
        return module.missing(batch)

    settings: dict[str, Any] = {"earlier": {}, "score": broken}
    with pytest.raises(ValueError, match="The data of 'week 1' cannot be scored, as their first"):
        fit(Model(), 1, ContinualCallback(tmp_path, **settings))
    assert not (tmp_path / MEMORY).exists()


@pytest.mark.parametrize("policy", ["kept", "new"])
def test_any_optimizer_is_kept_or_made_anew(tmp_path: Path, policy: str):
    whole, model = Model(torch.optim.AdamW), Model(torch.optim.AdamW)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-2)
    for week in (1, 2):
        if policy == "new":
            optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-2)
        for _ in range(2):
            for x, y in data(week):
                optimizer.zero_grad()
                nn.functional.cross_entropy(whole.net(x), y).backward()
                optimizer.step()
        fit(model, week, ContinualCallback(tmp_path, policy=policy))
    for a, b in zip(whole.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)

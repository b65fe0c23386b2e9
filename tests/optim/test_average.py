"""An average of the weights over tasks or steps: torch's own rules, the model's own weights."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from longtail import TaskAverage


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def move(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator).to(p.dtype))


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def assert_equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", ["task", "ema"])
def test_it_is_what_torchs_own_averaged_model_has(kind: str) -> None:
    model = make_model()
    ours = TaskAverage(model, kind, decay=0.9)
    rule = {} if kind == "task" else {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}
    theirs = AveragedModel(model, **rule)
    for task in range(5):
        move(model, task)
        ours.step()
        ours.end_task()
        theirs.update_parameters(model)
    live = weights(model)
    with ours.applied():
        for a, b in zip(weights(model), weights(theirs.module), strict=True):
            torch.testing.assert_close(a, b)
    assert_equal(weights(model), live)


def test_own_weights_come_back_also_after_an_error() -> None:
    model = make_model()
    average = TaskAverage(model)
    average.end_task()
    move(model, 1)
    live = weights(model)
    with pytest.raises(KeyError), average.applied():
        raise KeyError
    assert_equal(weights(model), live)


def test_a_parameter_counts_from_the_first_task_that_moved_it() -> None:
    """The head of a later task is not averaged with what it was before anybody had moved it."""
    model = nn.ModuleDict({"trunk": nn.Linear(1, 1, bias=False), "head": nn.Linear(1, 1, False)})
    trunk, head = model["trunk"].weight, model["head"].weight
    average = TaskAverage(model)
    for a, b in ((1.0, None), (2.0, 10.0), (6.0, 12.0)):
        nn.init.constant_(trunk, a)  # pyright: ignore[reportArgumentType]
        if b is not None:
            nn.init.constant_(head, b)  # pyright: ignore[reportArgumentType]
        average.end_task()
    assert average.tasks == 3
    with average.applied():
        assert (trunk.item(), head.item()) == (3.0, 11.0)


def test_what_is_frozen_or_left_out_and_buffers_stay_the_models_own() -> None:
    model = make_model()
    model[2].weight.requires_grad_(False)  # pyright: ignore
    average = TaskAverage(model, leave_out=[model[0].weight])  # pyright: ignore
    for task in range(3):
        move(model, task)
        model[1].running_mean.fill_(task)  # pyright: ignore
        average.end_task()
    live = {name: t.clone() for name, t in model.state_dict().items()}
    with average.applied():
        same = {n for n, t in model.state_dict().items() if torch.equal(t, live[n])}
    buffers = {f"1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert same == {"0.weight", "2.weight", *buffers}


def test_half_precision_weights_have_an_average_that_still_moves() -> None:
    model = nn.Linear(1, 1, bias=False).bfloat16()
    average = TaskAverage(model)
    nn.init.constant_(model.weight, 1.0)
    for _ in range(999):
        average.end_task()
    nn.init.constant_(model.weight, 2.0)
    for _ in range(1001):
        average.end_task()
    with average.applied():
        assert model.weight.item() == pytest.approx(1.5, abs=0.01)


@pytest.mark.parametrize("kind", ["task", "ema"])
def test_state_and_file_go_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    model, twin, third = make_model(), make_model(), make_model()
    first = TaskAverage(model, kind, 0.9)
    for task in range(3):
        move(model, task)
        first.step()
        first.end_task()
    path = first.save(tmp_path)
    torch.save(first.state_dict(), tmp_path / "state")
    for other in (twin, third):
        other.load_state_dict(model.state_dict())
    second, last = TaskAverage(twin, kind, 0.9), TaskAverage(third, kind, 0.9)
    second.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert last.load(path)
    for each, average in ((model, first), (twin, second), (third, last)):
        move(each, 9)
        average.step()
        average.end_task()
    with first.applied(), second.applied(), last.applied():
        assert_equal(weights(model), weights(twin))
        assert_equal(weights(model), weights(third))


def test_mistakes_are_told(tmp_path: Path) -> None:
    model = make_model()
    with pytest.raises(ValueError, match="Invalid kind: 'tasks', not 'task' or 'ema'"):
        TaskAverage(model, "tasks")
    with pytest.raises(ValueError, match=r"Invalid decay: 1\.5"):
        TaskAverage(model, "ema", 1.5)
    assert not TaskAverage(model).load(tmp_path)
    TaskAverage(model).save(tmp_path)
    with pytest.raises(ValueError, match="it is one of kind 'task', not 'ema'"):
        TaskAverage(model, "ema").load(tmp_path)
    with pytest.raises(ValueError, match=r"0.weight is \(3, 4\) there and \(2, 5\) here"):
        TaskAverage(nn.Sequential(nn.Linear(5, 2))).load(tmp_path)
    (tmp_path / "longtail_average.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="holds no average"):
        TaskAverage(model).load(tmp_path)
    with pytest.raises(ValueError, match="differ in shape"):
        TaskAverage(nn.Linear(2, 2)).load_state_dict(TaskAverage(model).state_dict())


def test_a_file_that_is_refused_leaves_the_average_as_it_was(tmp_path: Path) -> None:
    """Its last tensor has another shape; those before it are not taken over."""
    made = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    TaskAverage(made).save(tmp_path)
    other = nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 5))
    average = TaskAverage(other)
    before = copy.deepcopy(average.state_dict())
    with pytest.raises(ValueError, match=r"1\.weight is \(2, 3\) there and \(5, 4\) here"):
        average.load(tmp_path)
    assert str(average.state_dict()) == str(before)


@pytest.mark.parametrize("kind", ["task", "ema"])
def test_a_grown_tensor_keeps_the_average_of_its_rows_and_a_shrunk_one_its_first(
    kind: str, tmp_path: Path
) -> None:
    """More tokens, more classes: as the memory takes them."""
    model = nn.Embedding(4, 2)
    average = TaskAverage(model, kind, 0.5)
    for task in range(3):
        move(model, task)
        average.step()
        average.end_task()
    average.save(tmp_path)
    with average.applied():
        expected = model.weight.detach().clone()
    grown, small = nn.Embedding(6, 2), nn.Embedding(3, 2)
    new_rows = grown.weight.detach()[4:].clone()
    later, less = TaskAverage(grown, kind, 0.5), TaskAverage(small, kind, 0.5)
    assert later.load(tmp_path)
    assert less.load(tmp_path)
    assert later.tasks == average.tasks
    with later.applied(), less.applied():
        assert torch.equal(grown.weight[:4], expected)
        assert torch.equal(grown.weight[4:], new_rows)
        assert torch.equal(small.weight, expected[:3])


def test_a_spoiled_average_is_neither_saved_nor_loaded(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    average = TaskAverage(model)
    file = average.save(tmp_path)
    content = bytearray(file.read_bytes())
    content[-2] ^= 1 << 6
    file.write_bytes(content)
    with pytest.raises(ValueError, match="holds no average: bias is damaged"):
        average.load(tmp_path)
    nn.init.constant_(model.weight, float("nan"))
    average.end_task()
    with pytest.raises(ValueError, match=r"Cannot save .* the average of weight has NaN in it"):
        average.save(tmp_path)
    assert file.read_bytes() == content

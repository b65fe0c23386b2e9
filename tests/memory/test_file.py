"""What Continual Adam knows, through a file: another process, wrapper, order and shape."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch import Tensor, nn

import longtail
from helpers.optimizers import IMPLEMENTATIONS, assert_same
from helpers.tensor_files import with_checksums
from longtail import ContinualAdam, ContinualAdamW, end_task, load_memory, save_memory
from longtail.memory.document import FILE_NAME


class Words(nn.Module):
    """Embeds tokens, reads them, and names a class."""

    def __init__(self, tokens: int = 10, classes: int = 3, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(tokens, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, tokens if tied else classes)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embed(tokens))))


def train(model: nn.Module, optimizer: Any, steps: int, seed: int = 0, tokens: int = 10) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = torch.randint(tokens, (8,), generator=generator)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def trained(model: nn.Module, tasks: tuple[int, ...] = (3, 5), **settings: Any) -> ContinualAdamW:
    optimizer = ContinualAdamW(model.parameters(), lr=0.05, **settings)
    for i, steps in enumerate(tasks):
        train(model, optimizer, steps, seed=i)
        optimizer.end_task()
    return optimizer


def past(model: nn.Module, optimizer: Any, key: str = "past_exp_avg_sq") -> dict[str, Tensor]:
    return {
        name: optimizer.state[p][key]
        for name, p in model.named_parameters()
        if key in optimizer.state.get(p, {})
    }


def copy_of(model: nn.Module, **shape: Any) -> Any:
    other = Words(**shape)
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())
@pytest.mark.parametrize("moments", [("reset", "task"), ("task", "task_seen"), ("ema", "task")])
def test_a_loaded_memory_goes_on_as_if_never_saved(
    tmp_path: Path, implementation: dict[str, Any], moments: tuple[str, str]
) -> None:
    settings = dict(zip(("first_moment", "second_moment"), moments, strict=True))
    model = Words()
    optimizer = trained(model, **settings, **implementation)
    save_memory(optimizer, tmp_path, model)
    other = copy_of(model)
    fresh = ContinualAdamW(other.parameters(), lr=0.05, **settings, **implementation)
    report = load_memory(fresh, tmp_path, other)
    assert (report.tasks, report.steps, len(report.loaded)) == (2, 8, 5)
    for m, o in ((model, optimizer), (other, fresh)):
        train(m, o, 4, seed=7)
        o.end_task()
    assert_same(other.parameters(), model.parameters())
    assert "tasks seen: 3\n" in repr(fresh)


def test_this_weeks_settings_stay(tmp_path: Path) -> None:
    """Row 1 of the table: the state_dict of last week brings its rate of 0, policy and decay."""
    model = Words()
    optimizer = ContinualAdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    for step in range(5):
        train(model, optimizer, 1, seed=step)
        schedule.step()
    optimizer.end_task()
    assert optimizer.param_groups[0]["lr"] == 0.0
    save_memory(optimizer, tmp_path, model)

    groups: Any = [
        {"params": model.head.parameters(), "weight_decay": 0.2},
        {"params": [*model.body.parameters(), *model.embed.parameters()]},
    ]
    later = ContinualAdamW(
        groups, lr=5e-4, weight_decay=0.1, betas=(0.8, 0.99), second_moment="task_seen"
    )
    load_memory(later, tmp_path, model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(later, T_max=5)
    for group, decay in zip(later.param_groups, (0.2, 0.1), strict=True):
        assert group["lr"] == 5e-4
        assert group["weight_decay"] == decay
        assert group["betas"] == (0.8, 0.99)
        assert group["second_moment"] == "task_seen"
    before = [p.detach().clone() for p in model.parameters()]
    train(model, later, 1)
    assert all((p != b).any() for p, b in zip(model.parameters(), before, strict=True))
    assert later.state[model.body.weight]["past_steps"].item() == 5


def test_saving_within_a_task_writes_what_the_boundary_would_leave(tmp_path: Path) -> None:
    model = Words()
    optimizer = trained(model, first_moment="task")
    train(model, optimizer, 4, seed=9)
    before = {p: {k: x.clone() for k, x in s.items()} for p, s in optimizer.state.items()}
    save_memory(optimizer, tmp_path / "within", model)
    for p, state in before.items():
        assert_same(optimizer.state[p].values(), state.values())
    assert "tasks seen: 2\n" in repr(optimizer)
    optimizer.end_task()
    save_memory(optimizer, tmp_path / "after", model)
    within, after = (tmp_path / x / FILE_NAME for x in ("within", "after"))
    assert within.read_bytes() == after.read_bytes()


def test_names_survive_another_order_and_named_parameters(tmp_path: Path) -> None:
    """Row 6 of the table: parameters in another order were loaded swapped."""
    model = Words()
    optimizer = trained(model)
    expected = past(model, optimizer)
    save_memory(optimizer, tmp_path, model)
    later = ContinualAdamW(list(model.named_parameters())[::-1])
    load_memory(later, tmp_path)  # the optimizer itself knows the names
    assert past(model, later).keys() == expected.keys()
    assert_same(past(model, later).values(), expected.values())
    with pytest.raises(ValueError, match="give the model, or make the optimizer from"):
        load_memory(ContinualAdamW(model.parameters()), tmp_path)


def test_a_new_head_and_a_dropped_one(tmp_path: Path) -> None:
    """Row 4 of the table: a state_dict of another group size raises."""
    model = Words()
    save_memory(trained(model), tmp_path, model)
    model.second = nn.Linear(4, 2)
    del model.head
    later = ContinualAdamW(model.parameters())
    report = load_memory(later, tmp_path, model)
    assert [str(change) for change in report.new] == ["second.weight 2x4", "second.bias 2"]
    assert [str(change) for change in report.dropped] == ["head.weight 3x4", "head.bias 3"]
    assert len(report.loaded) == 3
    assert model.second.weight not in later.state


@pytest.mark.parametrize("rule", ["mean", "zero"])
def test_a_grown_vocabulary_and_more_classes(tmp_path: Path, rule: str, capsys: Any) -> None:
    """Row 5 of the table: it loaded, and the first step raised."""
    model = Words()
    optimizer = trained(model)
    old = past(model, optimizer)
    save_memory(optimizer, tmp_path, model)
    grown = Words(tokens=12, classes=4)
    later = ContinualAdamW(grown.parameters())
    capsys.readouterr()
    report = load_memory(later, tmp_path, grown, grow=rule)
    line = capsys.readouterr().out
    assert line == f"{report}\n"
    assert "3 grown (embed.weight 10x4 -> 12x4, head.weight 3x4 -> 4x4, head.bias 3 -> 4)" in line
    new = past(grown, later)
    assert torch.equal(new["embed.weight"][:10], old["embed.weight"])
    mean = old["embed.weight"].mean(0) if rule == "mean" else torch.zeros(4)
    assert torch.equal(new["embed.weight"][10:], mean.expand(2, 4))
    train(grown, later, 3, tokens=12)
    later.end_task()
    assert later.state[grown.embed.weight]["past_steps"].item() == 11


def test_a_shrunk_tensor_keeps_its_first_rows(tmp_path: Path) -> None:
    model = Words()
    optimizer = trained(model)
    save_memory(optimizer, tmp_path, model)
    small = Words(tokens=7)
    later = ContinualAdamW(small.parameters())
    report = load_memory(later, tmp_path, small)
    assert [str(change) for change in report.shrunk] == ["embed.weight 10x4 -> 7x4"]
    old = past(model, optimizer)["embed.weight"]
    assert torch.equal(past(small, later)["embed.weight"], old[:7])


def test_what_does_not_fit_is_an_error_that_names_both_shapes(tmp_path: Path) -> None:
    model = Words()
    save_memory(trained(model), tmp_path, model)
    model.body = nn.Linear(5, 6)
    later = ContinualAdamW(model.parameters())
    with pytest.raises(ValueError, match=r"body.weight has shape 4x4 in the file and 6x5 in the"):
        load_memory(later, tmp_path, model)
    assert not later.state
    report = load_memory(later, tmp_path, model, strict=False)
    assert [change.name for change in report.new] == ["body.weight"]
    assert report.dropped[0].name == "body.weight"
    assert model.body.weight not in later.state


@pytest.mark.parametrize("wrap", ["compile", "ddp-like", "checkpoint"])
def test_names_are_those_without_wrappers(tmp_path: Path, wrap: str) -> None:
    model = Words()
    optimizer = trained(model)
    wrapped: nn.Module
    if wrap == "compile":
        wrapped = torch.compile(model)  # type: ignore[assignment]
    elif wrap == "ddp-like":
        wrapped = nn.DataParallel(model)
    else:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        model.body = checkpoint_wrapper(model.body)
        wrapped = model
    save_memory(optimizer, tmp_path, wrapped)
    plain = Words()
    later = ContinualAdamW(plain.parameters())
    assert len(load_memory(later, tmp_path, plain).loaded) == 5
    assert len(load_memory(optimizer, tmp_path, wrapped).loaded) == 5


def test_flattened_parameters_are_refused(tmp_path: Path) -> None:
    class FullyShardedDataParallel(Words):
        """Of the name that torch's first FSDP has."""

    model = FullyShardedDataParallel()
    with pytest.raises(ValueError, match=r"flattens parameters .* use fully_shard \(FSDP2\)"):
        save_memory(trained(model), tmp_path, model)


def test_another_mapping_can_be_given(tmp_path: Path) -> None:
    model = Words()
    save_memory(trained(model), tmp_path, model)
    inside = nn.ModuleDict({"model": Words()})
    later = ContinualAdamW(inside.parameters())
    with pytest.raises(ValueError, match=r"'embed.weight' there and 'model.embed.weight' here"):
        load_memory(later, tmp_path, inside)
    names = {f"model.{name}": name for name, _ in model.named_parameters()}
    for mapping in (names, lambda name: name.removeprefix("model.")):
        assert len(load_memory(later, tmp_path, inside, names=mapping).loaded) == 5
    with pytest.raises(ValueError, match="Two parameters of the optimizer are called 'x'"):
        load_memory(later, tmp_path, inside, names=lambda name: "x")


def test_tied_parameters_are_kept_once_and_found_when_untied(tmp_path: Path) -> None:
    model = Words(tied=True)
    optimizer = trained(model)
    path = save_memory(optimizer, tmp_path, model)
    with safetensors.safe_open(path, "pt") as file:
        assert len(list(file.keys())) == 4
    untied = Words(classes=10)
    later = ContinualAdamW(untied.parameters())
    assert len(load_memory(later, tmp_path, untied).loaded) == 5
    expected = past(model, optimizer)["embed.weight"]
    assert torch.equal(past(untied, later)["head.weight"], expected)


@pytest.mark.parametrize(
    ("dtype", "size", "tolerance"),
    [(None, 4.0, 0), (torch.bfloat16, 2.0, 2**-8), ("uint8", 1.0, 2 ** (1 / 6) - 1 + 1e-4)],
)
def test_bytes_a_parameter(tmp_path: Path, dtype: Any, size: float, tolerance: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(512, 512)
    optimizer = ContinualAdam(model.parameters())
    model(torch.randn(4, 512)).square().mean().backward()
    optimizer.step()
    end_task(optimizer)
    path = save_memory(optimizer, tmp_path / "m.safetensors", model, dtype=dtype)
    count = sum(p.numel() for p in model.parameters())
    assert path.stat().st_size / count == pytest.approx(size, rel=0.01)
    later = ContinualAdam(model.parameters())
    load_memory(later, path, model)
    loaded, saved = past(model, later), past(model, optimizer)
    for name in loaded:
        assert loaded[name].dtype == torch.float32
        torch.testing.assert_close(loaded[name], saved[name], rtol=tolerance, atol=0)


def test_half_precision_and_signed_first_moments(tmp_path: Path) -> None:
    model = Words().bfloat16()
    optimizer = trained(model, first_moment="task")
    save_memory(optimizer, tmp_path, model, dtype="uint8")
    later = ContinualAdamW(model.parameters(), first_moment="task")
    load_memory(later, tmp_path, model)
    first = past(model, later, "past_exp_avg")["body.weight"]
    saved = past(model, optimizer, "past_exp_avg")["body.weight"]
    assert first.dtype == torch.float32
    torch.testing.assert_close(first, saved, rtol=2**-8, atol=0)
    assert (first < 0).any()


def test_a_moving_average_becomes_an_average_over_tasks(tmp_path: Path) -> None:
    """The file has one meaning whatever the policy: v^ of the past, over c steps."""
    p = nn.Linear(1, 1, bias=False)
    carried = ContinualAdam(p.parameters(), second_moment="ema")
    for _ in range(10):
        p.weight.grad = torch.full((1, 1), 3.0)
        carried.step()
    carried.end_task()
    save_memory(carried, tmp_path, p)
    averaged = ContinualAdam(p.parameters())
    load_memory(averaged, tmp_path, p)
    assert averaged.state[p.weight]["past_exp_avg_sq"].item() == pytest.approx(9.0, rel=1e-5)
    again = ContinualAdam(p.parameters(), second_moment="ema")
    load_memory(again, tmp_path, p)
    expected = carried.state[p.weight]["exp_avg_sq"].item()
    assert again.state[p.weight]["exp_avg_sq"].item() == pytest.approx(expected, rel=1e-6)


def test_a_policy_that_needs_what_was_not_kept_is_refused(tmp_path: Path) -> None:
    model = Words()
    save_memory(trained(model), tmp_path, model)
    later = ContinualAdamW(model.parameters(), first_moment="task")
    with pytest.raises(ValueError, match="first_moment='task' needs a past that was not kept"):
        load_memory(later, tmp_path, model)
    assert not later.state


def test_loading_within_a_task_keeps_the_task(tmp_path: Path) -> None:
    """In place, so that plans and graphs of fused steps go on pointing at the right memory."""
    results = []
    for kwargs in IMPLEMENTATIONS.values():
        model = Words()
        save_memory(trained(model), tmp_path, model)
        later = trained(model, tasks=(2,), **kwargs)
        train(model, later, 3, seed=5)
        places = [x.data_ptr() for x in past(model, later).values()]
        load_memory(later, tmp_path, model)
        assert [x.data_ptr() for x in past(model, later).values()] == places
        train(model, later, 3, seed=6)
        assert later.state[model.body.weight]["step"].item() == 6
        assert later.state[model.body.weight]["past_steps"].item() == 8
        results.append([p.detach().clone() for p in model.parameters()])
    for other in results[1:]:
        assert_same(other, results[0], rtol=1e-5, atol=1e-6)


class Wrapper:
    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


def test_wrapped_optimizers(tmp_path: Path) -> None:
    model = Words()
    save_memory(Wrapper(trained(model)), tmp_path, model)
    later = ContinualAdamW(model.parameters())
    load_memory(Wrapper(Wrapper(later)), tmp_path, model)
    assert "tasks seen: 2\n" in repr(later)
    plain = torch.optim.AdamW(model.parameters())
    with pytest.raises(TypeError, match=r"save_memory\(\) found no ContinualAdam .* torch.optim"):
        save_memory(plain, tmp_path, model)
    with pytest.raises(ValueError, match=r"of shape \(10, 4\) of the optimizer is none of the"):
        save_memory(trained(Words()), tmp_path, model)


def test_the_file_is_read_by_safetensors_and_says_what_made_it(tmp_path: Path) -> None:
    model = Words()
    optimizer = trained(model)
    path = save_memory(optimizer, tmp_path / "new" / "folder", model)
    assert path == tmp_path / "new" / "folder" / "longtail_memory.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        tensor = file.get_tensor("past_exp_avg_sq/body.weight")
        memory = json.loads(file.metadata()["memory"])
    assert torch.equal(tensor, past(model, optimizer)["body.weight"])
    assert memory["tasks"] == 2
    assert memory["parameters"]["body.weight"] == {"shape": [4, 4], "steps": 8, "tasks": 2}
    made_by = memory["made_by"]
    assert made_by["optimizer"] == "ContinualAdamW"
    assert made_by["longtail"] == longtail.__version__


def damaged(kind: str, path: Path, model: nn.Module) -> str:
    whole = path.read_bytes()
    if kind == "missing":
        path.unlink()
        return "There is no memory at"
    if kind == "cut off":
        path.write_bytes(whole[:-10])
        return "it is cut off: "
    if kind == "cut off in its header":
        path.write_bytes(whole[:100])
        return "it is cut off within its header"
    if kind == "pickle":
        torch.save(model.state_dict(), path)
        return "it is no safetensors file"
    if kind == "empty":
        path.write_bytes(b"")
        return "it is no safetensors file"
    if kind == "weights":
        save_file({"x": torch.zeros(2, dtype=torch.int64)}, path)
        return "it is a safetensors file, but no longtail memory"
    if kind == "newer":
        rewritten(path, lambda header, _: header["__metadata__"].update(version="9"))
        return "it has version '9' of the format and this longtail knows 1"
    if kind == "changed header":
        path.write_bytes(whole.replace(rb"\"steps\": 8", rb"\"steps\": 9"))
        return "its header is damaged"
    if kind == "folder":
        path.unlink()
        path.mkdir()
        return "Is a directory"
    rewritten(path, lambda _, memory: memory["parameters"]["body.bias"].pop("steps"))
    return "its description is damaged"


@pytest.mark.parametrize(
    "kind",
    [
        *("missing", "cut off", "cut off in its header", "pickle", "empty", "weights", "newer"),
        *("description", "changed header", "folder"),
    ],
)
def test_a_file_that_cannot_be_read_gets_one_sentence(tmp_path: Path, kind: str) -> None:
    model = Words()
    optimizer = trained(model)
    path = save_memory(optimizer, tmp_path, model)
    sentence = damaged(kind, path, model)
    before = {p: {k: x.clone() for k, x in s.items()} for p, s in optimizer.state.items()}
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        load_memory(optimizer, path, model)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    for p, state in before.items():
        assert_same(optimizer.state[p].values(), state.values())


def rewritten(path: Path, change: Any) -> None:
    """The file with another header, and its checksum.

    `change` is given the header and its description of the memory.
    """
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    memory = json.loads(header["__metadata__"]["memory"])
    change(header, memory)
    header["__metadata__"]["memory"] = json.dumps(memory)
    text = json.dumps(header).encode()
    path.write_bytes(with_checksums(len(text).to_bytes(8, "little") + text + whole[8 + size :]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda header, memory: header["past_exp_avg_sq/body.bias"].update(shape=[2, 2]),
            "past_exp_avg_sq/body.bias is 2x2 there and not 4",
        ),
        (
            lambda header, memory: header["past_exp_avg_sq/head.weight"].update(shape=[4, 3]),
            "past_exp_avg_sq/head.weight is 4x3 there and not 3x4",
        ),
        (  # as that of a complex parameter is kept
            lambda header, memory: (
                header["past_exp_avg_sq/body.bias"].update(shape=[2, 2]),
                memory["parameters"]["body.bias"].update(shape=[2]),
            ),
            "body.bias",
        ),
        (
            lambda header, memory: memory["parameters"]["body.bias"].update(also=[[1]]),
            "its description is damaged",
        ),
    ],
)
def test_a_header_that_contradicts_itself_loads_nothing(
    tmp_path: Path, change: Any, sentence: str
) -> None:
    model = Words()
    path = save_memory(trained(model), tmp_path, model, dtype="uint8")
    rewritten(path, lambda *_: None)
    fresh = ContinualAdamW(model.parameters())
    load_memory(fresh, path, model, quiet=True)  # the header can be written so
    rewritten(path, change)
    fresh = ContinualAdamW(model.parameters())
    with pytest.raises(ValueError, match=sentence):
        load_memory(fresh, path, model)
    assert not any(fresh.state.values())


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    model = Words()
    optimizer = trained(model)
    with pytest.raises(ValueError, match="Invalid names: 5, neither a function nor a mapping"):
        save_memory(optimizer, tmp_path, model, names=5)  # pyright: ignore
    with pytest.raises(ValueError, match=r"Invalid dtype: torch.float16, must be one of 'float32'"):
        save_memory(optimizer, tmp_path, model, dtype=torch.float16)
    with pytest.raises(ValueError, match="Invalid grow: 'max', must be one of 'mean', 'zero'"):
        load_memory(optimizer, tmp_path, model, grow="max")


def test_a_save_that_is_hardly_meant_is_told(tmp_path: Path) -> None:
    model = Words()
    with pytest.warns(UserWarning, match="the optimizer has taken no step and has no past"):
        save_memory(ContinualAdamW(model.parameters()), tmp_path / "nothing", model)
    save_memory(trained(model), tmp_path, model)
    forgot = trained(model, tasks=(3,))
    with pytest.warns(UserWarning, match="2 tasks and 8 steps, and is replaced by 1 task and 3 st"):
        save_memory(forgot, tmp_path, model)
    save_memory(trained(model), tmp_path, model)  # more than there is: no warning


PROCESS = """
import sys, torch
from longtail import ContinualAdamW, load_memory, save_memory
week, folder = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimizer = ContinualAdamW(model.parameters(), lr=0.1 / week)
if week > 1:
    load_memory(optimizer, folder, model)
for _ in range(week):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
optimizer.end_task()
save_memory(optimizer, folder, model)
print(int(optimizer.state[model.weight]["past_steps"]))
"""


@pytest.mark.slow
def test_three_weeks_three_processes(tmp_path: Path) -> None:
    for week, steps in ((1, 1), (2, 3), (3, 6)):
        command = [sys.executable, "-c", PROCESS, str(week), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == str(steps)


def on_each_rank(rank: int, folder: str, world: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    store = f"file://{folder}/store{world}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    model = Words()
    fully_shard(model, mesh=mesh)
    optimizer = ContinualAdamW(model.parameters(), lr=0.05)
    report = load_memory(optimizer, folder, model)  # written by a plain model
    assert len(report.loaded) == 5
    train(model, optimizer, 4, seed=3)
    save_memory(optimizer, f"{folder}/sharded", model)  # within the task
    restored = ContinualAdamW(model.parameters(), lr=0.05)
    assert load_memory(restored, f"{folder}/sharded", model, quiet=True).steps == 12
    end_task(optimizer)
    for p in model.parameters():
        mine, theirs = (o.state[p]["past_exp_avg_sq"] for o in (optimizer, restored))
        assert torch.equal(mine.to_local(), theirs.to_local())
    dist.barrier()
    dist.destroy_process_group()
    Path(folder, f"passed{rank}").touch()
    os._exit(0)  # gloo's threads may outlive the group


@pytest.mark.filterwarnings("ignore")
def test_sharded_on_two_ranks_and_back_into_a_plain_model(tmp_path: Path) -> None:
    model = Words()
    optimizer = trained(model)
    save_memory(optimizer, tmp_path, model)
    mp.spawn(on_each_rank, (str(tmp_path), 2), nprocs=2)
    assert (tmp_path / "passed0").exists()
    assert (tmp_path / "passed1").exists()
    plain = Words()
    expected = ContinualAdamW(plain.parameters(), lr=0.05)
    load_memory(expected, tmp_path, plain)
    train(plain, expected, 4, seed=3)
    expected.end_task()
    later = ContinualAdamW(plain.parameters())
    report = load_memory(later, tmp_path / "sharded", plain)
    assert (report.tasks, report.steps, len(report.loaded)) == (3, 12, 5)
    assert_same(past(plain, later).values(), past(plain, expected).values(), rtol=1e-4, atol=1e-9)


def test_import_is_quick_and_brings_no_framework() -> None:
    code = (
        "import sys, time; a = time.process_time(); import longtail; b = time.process_time();"
        "assert not {'torch', 'transformers', 'lightning', 'peft'} & set(sys.modules);"
        "assert callable(longtail.save_memory) and callable(longtail.load_memory);"
        "assert not {'transformers', 'lightning', 'peft', 'accelerate'} & set(sys.modules);"
        "print(b - a)"
    )
    seconds = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
        for _ in range(2)
    ]
    assert min(seconds) < 0.02


def noisy_steps(model: nn.Module, optimizer: Any, steps: int, tokens: int) -> None:
    """Targets that cannot be learned: gradients stay as large as they are."""
    generator = torch.Generator().manual_seed(tokens)
    for _ in range(steps):
        batch = torch.randint(tokens, (8,), generator=generator)
        optimizer.zero_grad()
        targets = torch.randn(8, 3, generator=generator)
        (model(batch) - targets).square().mean().backward()
        optimizer.step()


def test_new_rows_move_like_old_ones_with_the_mean_and_too_far_with_zero(tmp_path: Path) -> None:
    """How far rows of new tokens move in twenty steps, as multiples of a new AdamW's."""
    model = Words()
    optimizer = ContinualAdamW(model.parameters(), lr=1e-3)
    noisy_steps(model, optimizer, 400, tokens=10)
    optimizer.end_task()
    save_memory(optimizer, tmp_path, model)
    moved = {}
    for rule, policy in (("mean", "task"), ("zero", "task"), ("zero", "task_seen"), ("", "reset")):
        grown = Words(tokens=12)
        later = ContinualAdamW(grown.parameters(), lr=1e-3, second_moment=policy, beta3=0.0)
        if rule:
            load_memory(later, tmp_path, grown, grow=rule, quiet=True)
        start = grown.embed.weight.detach().clone()
        noisy_steps(grown, later, 20, tokens=12)
        moved[rule, policy] = float((grown.embed.weight.detach() - start)[10:].abs().mean())
    adam = moved["", "reset"]
    assert moved["zero", "task"] > 2.5 * moved["mean", "task"]
    assert moved["zero", "task"] > 3 * adam
    assert 0.5 * adam < moved["mean", "task"] < 2 * adam
    assert moved["zero", "task_seen"] == pytest.approx(adam, rel=0.1)

"""A stranger's memory file: spoiled, flipped, torn, through a link, in the place of a folder.

Each test is a script of somebody who knows `save_memory` and `load_memory` and nothing else of us.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from longtail import ContinualAdamW, load_memory, save_memory

NAME = "longtail_memory.safetensors"


def trained(size: int = 3) -> tuple[nn.Module, ContinualAdamW]:
    torch.manual_seed(0)
    model = nn.Linear(size, size)
    optimizer = ContinualAdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, size)).square().mean().backward()
        optimizer.step()
    optimizer.end_task()
    return model, optimizer


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (float("nan"), "weight has NaN in it"),
        (float("inf"), "weight has infinite values"),
        (-1e-3, "weight is negative"),
    ],
)
def test_a_spoiled_past_is_not_saved_and_what_was_saved_stays(
    tmp_path: Path, value: float, sentence: str
):
    model, optimizer = trained()
    save_memory(optimizer, tmp_path, model)
    before = (tmp_path / NAME).read_bytes()
    optimizer.state[model.weight]["past_exp_avg_sq"][1, 2] = value
    with pytest.raises(ValueError, match=rf"Cannot save .*{sentence}"):
        save_memory(optimizer, tmp_path, model)
    assert (tmp_path / NAME).read_bytes() == before
    assert os.listdir(tmp_path) == [NAME]


@pytest.mark.parametrize("place", [-1, -7, -36, "count of steps"])
def test_no_bit_flips_unnoticed(tmp_path: Path, place: int | str):
    """0.71 became 2.4e38: one bit of an exponent."""
    model, optimizer = trained()
    file = save_memory(optimizer, tmp_path, model)
    content = bytearray(file.read_bytes())
    data = isinstance(place, int)
    if not isinstance(place, int):
        place = content.index(b"steps") + len(rb"steps\": ")
    for bit in range(8):
        content[place] ^= 1 << bit
        file.write_bytes(content)
        fresh = ContinualAdamW(model.parameters())
        with pytest.raises(ValueError, match="Cannot load ") as caught:
            load_memory(fresh, tmp_path, model)
        assert "\n" not in str(caught.value)
        assert not data or "is damaged: it is not what" in str(caught.value)
        assert not any(fresh.state.values())
        content[place] ^= 1 << bit
    file.write_bytes(content)
    load_memory(ContinualAdamW(model.parameters()), tmp_path, model)


def test_a_folder_in_the_place_of_the_file_is_one_sentence(tmp_path: Path):
    model, optimizer = trained()
    folder = tmp_path / "memory.safetensors"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    for call, words in ((save_memory, "it is a folder"), (load_memory, "Is a directory")):
        with pytest.raises(ValueError, match=rf"{folder}: {words}"):
            call(optimizer, folder, model)
    assert (folder / "mine.txt").read_text() == "mine"


def test_a_link_that_somebody_put_there_is_not_written_through(tmp_path: Path):
    """Under the name that a draft of this process once had, and under the file's own."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / "model"
    folder.mkdir()
    for name in (NAME, f".{NAME}.{os.getpid()}.tmp"):
        (folder / name).symlink_to(precious)
    model, optimizer = trained()
    save_memory(optimizer, folder, model)
    assert precious.read_text() == "mine"
    load_memory(optimizer, folder, model)


WRITER = """
import os, sys, time, torch
from torch import nn
os.getpid = lambda: 7                       # as in two containers
from longtail import ContinualAdamW, save_memory
value, folder, seconds = float(sys.argv[1]), sys.argv[2], float(sys.argv[3])
model = nn.Linear(700, 700)
optimizer = ContinualAdamW(model.parameters())
for p in model.parameters():
    optimizer.state[p] = {"past_exp_avg_sq": torch.full_like(p, value).detach(),
                          "past_steps": torch.tensor(1.0)}
optimizer.param_groups[0]["tasks_seen"].fill_(1)
print("ready", flush=True)
end = time.time() + seconds
while time.time() < end:
    save_memory(optimizer, folder, model)
"""


def start(folder: Path, value: float, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(value), str(folder), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until_ready(*writers: subprocess.Popen[str]) -> None:
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"


def test_two_processes_with_one_number_do_not_tear_the_file(tmp_path: Path):
    """11 of 120 loads had values of both, without a word."""
    writers = [start(tmp_path, value, 3.0) for value in (1.0, 2.0)]
    wait_until_ready(*writers)
    model = nn.Linear(700, 700)
    loads = 0
    while any(writer.poll() is None for writer in writers):
        if not (tmp_path / NAME).exists():
            continue
        optimizer = ContinualAdamW(model.parameters())
        load_memory(optimizer, tmp_path, model, quiet=True)
        values = {float(v) for s in optimizer.state.values() for v in s["past_exp_avg_sq"].unique()}
        assert values in ({1.0}, {2.0})
        loads += 1
    assert [writer.communicate()[1] for writer in writers] == ["", ""]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert loads > 3
    assert os.listdir(tmp_path) == [NAME]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX")
def test_what_killed_processes_left_is_gone_after_the_next_save(tmp_path: Path):
    """33 drafts of 281 MB were left."""
    for _ in range(6):
        writer = start(tmp_path, 1.0, 60.0)
        wait_until_ready(writer)
        while not [name for name in os.listdir(tmp_path) if name != NAME]:
            time.sleep(0.001)
        writer.kill()
        writer.communicate()
        if [name for name in os.listdir(tmp_path) if name != NAME]:
            break
    else:
        pytest.fail("no process was killed while it wrote")
    (tmp_path / ".mine.tmp").write_text("mine")
    model, optimizer = trained(700)
    save_memory(optimizer, tmp_path, model)
    assert sorted(os.listdir(tmp_path)) == [".mine.tmp", NAME]

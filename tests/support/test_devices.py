"""The device that a run is given."""

import pytest
import torch

from longtail.support.devices import choose_device, data_memory, hardware


def test_auto_is_the_gpu_where_there_is_one():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert choose_device("auto").type == expected
    assert choose_device("cpu") == torch.device("cpu")


def test_devices_that_are_not_there_are_a_users_mistake(monkeypatch):
    with pytest.raises(ValueError, match="unknown device 'gpu'; try cpu or cuda"):
        choose_device("gpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("cuda:0").index == 0
    with pytest.raises(ValueError, match="'cuda:1' is not there: this machine has 1 CUDA"):
        choose_device("cuda:1")


@pytest.mark.parametrize("name", ["meta", "xla", "xla:1", "hpu", "vulkan", "privateuseone"])
def test_devices_that_torch_names_but_nothing_trains_on_are_refused(name: str):
    kind = name.partition(":")[0]
    with pytest.raises(ValueError, match=f"device '{name}': nothing trains on {kind}; try cpu"):
        choose_device(name)


def test_apples_gpu_is_a_device_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("mps").type == "mps"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"'mps' is not there: .* has no MPS"):
        choose_device("mps")


def test_a_stack_on_a_cpu_may_hold_two_gibibytes():
    assert data_memory("cpu") == 2**31


def test_hardware_names_processor_and_device():
    found = hardware("cpu")
    assert found["device"] == "cpu"
    assert found["cpu"]
    assert found["threads"] == torch.get_num_threads()

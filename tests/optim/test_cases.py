"""Every way in which a step can be taken, against the paper line by line."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optim.cases import CASES, Case, Training

from helpers import optimizers
from longtail import ContinualAdam, ContinualAdamW

SUPPORTED = "longtail.optim.loops._get_capturable_supported_devices"


def check(case: Case, **way: Any) -> None:
    training = Training(case, optimizers.device, **way)
    training.run()
    seen = {int(group["tasks_seen"]) for group in training.optimizer.param_groups}
    assert seen == {sum(steps > 0 for steps in case.tasks)}


@pytest.mark.filterwarnings("ignore:.*capturable")
@pytest.mark.parametrize("name", CASES)
def test_a_case_follows_the_paper(name: str, implementation: dict[str, Any]) -> None:
    check(CASES[name], **implementation)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_counts_in_tensors_give_the_same(
    name: str, foreach: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch that CUDA graphs and compiled steps use, on a CPU."""
    monkeypatch.setattr(SUPPORTED, lambda: ["cpu"])
    check(CASES[name], capturable=True, foreach=foreach)


GROUP = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([1e-3, 0.1]),
        "betas": st.sampled_from([(0.9, 0.999), (0.0, 0.5), (0.5, 0.0), (0.8, 0.99)]),
        "beta3": st.sampled_from([0.0, 0.5, 0.9]),
        "eps": st.sampled_from([1e-8, 1e-3]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "maximize": st.booleans(),
        "first_moment": st.sampled_from(optimizers.FIRST_MOMENTS),
        "second_moment": st.sampled_from(optimizers.SECOND_MOMENTS),
    }
)
DRAWN = st.builds(
    Case,
    kind=st.sampled_from([ContinualAdam, ContinualAdamW]),
    groups=st.lists(GROUP, min_size=1, max_size=3).map(tuple),
    layouts=st.lists(
        st.sampled_from(["plain", "transposed", "offset", "channels last"]), min_size=1
    ),
    missing=st.sampled_from(["none", "some", "late", "later"]),
    tasks=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
)


@pytest.mark.parametrize("way", optimizers.IMPLEMENTATIONS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=DRAWN)
def test_whatever_the_settings_it_follows_the_paper(way: str, case: Case) -> None:
    Training(case, "cpu", **optimizers.IMPLEMENTATIONS[way]).run()

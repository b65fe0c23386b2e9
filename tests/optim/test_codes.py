"""The logarithmic byte: what it keeps of a second moment."""

import pytest
import torch

from longtail.optim.codes import OFFSET, PER_OCTAVE, decode, encode


def test_every_code_comes_back_as_itself() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(encode(decode(codes)), codes)
    assert decode(codes)[0] == 0.0
    assert decode(codes)[OFFSET] == 1.0
    assert decode(codes)[OFFSET + PER_OCTAVE] == 2.0


def test_values_are_off_by_a_sixth_of_an_octave_at_most() -> None:
    values = torch.logspace(-58, 24, 10_000, base=2.0)
    ratio = decode(encode(values)) / values
    assert ratio.max() <= 2 ** (1 / 6) * 1.0001
    assert ratio.min() >= 2 ** (-1 / 6) * 0.9999


def test_zero_is_zero_and_nothing_else_is() -> None:
    values = torch.tensor([0.0, 1e-45, 1e-30, 1e30, float("inf")])
    assert encode(values).tolist() == [0, 1, 1, 255, 255]


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_what_has_no_logarithm_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="has no code"):
        encode(torch.tensor([1.0, value]))


def test_more_than_one_chunk_and_any_shape() -> None:
    values = torch.rand(3, (1 << 20) - 1, generator=torch.Generator().manual_seed(0))
    back = torch.empty_like(values)
    assert decode(encode(values), out=back) is back
    assert ((back / values).log2().abs() <= 1 / 6 + 1e-5).all()
    assert encode(values.t()).shape == values.t().shape
    assert torch.equal(encode(values.t()), encode(values).t())

"""The encoder's kernels against plain operations, without a GPU: by Triton's interpreter.

`make test-kernels` runs it. The interpreter multiplies float32 alone, so the products take that in
place of bf16, and the kernels must agree with plain operations to its last digits. On a GPU
`tests/gpu/test_encoder_gpu.py` tests them as they are used.
"""

import importlib.util
import os

import pytest
import torch

from longtail.replicas import Replicas
from longtail.tasks.examples import Packable, Ragged
from longtail_bench.encoder import fused, layers
from longtail_bench.encoder.plain import Encoder, EncoderConfig
from longtail_bench.wsd.model import SentencePairs

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton")
pytestmark = pytest.mark.skipif(not INTERPRETS, reason="make test-kernels runs it")

BERT = EncoderConfig(60, 32, 2, 2, 48, 40)
MPNET = EncoderConfig(60, 32, 2, 2, 48, 50, 0, 1e-6, "gelu", 1, 2, 32, kind="mpnet")
CASES = [(BERT, 1, 1, 18), (BERT, 2, 2, 34), (MPNET, 2, 1, 34), (MPNET, 1, 2, 18)]
SEP = 3


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "usable", lambda *_: True)
    monkeypatch.setattr(layers, "HALF", torch.float32)


def stack(config: EncoderConfig, P: int, S: int) -> Replicas:
    torch.manual_seed(0)
    model = Replicas([SentencePairs(Encoder(config), SEP) for _ in range(S)], P)
    for p in model.parameters():
        p.data.add_(0.05 * torch.randn_like(p))
    return model


def pairs(config: EncoderConfig, S: int, width: int) -> Ragged:
    """Five pairs, one of them a single token, as rows that fill a batch up have."""
    at, lengths = torch.arange(width), torch.randint(width // 2, width + 1, (S, 5))
    lengths[:, 3] = 1
    ids = torch.randint(4, 60, (S, 5, width))
    ids = torch.where((at == lengths[..., None] // 2) | (at == lengths[..., None] - 1), SEP, ids)
    return Ragged(ids.masked_fill(at >= lengths[..., None], config.pad), lengths)


def gradients(model: Replicas, inputs: Ragged) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    scores = model(inputs)
    torch.nn.functional.softplus(scores).sum().backward()
    return scores.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def assert_close(found: tuple, expected: tuple) -> None:
    assert error(found[0], expected[0]) < 3e-6
    for name, value in expected[1].items():
        assert error(found[1][name], value) < 3e-6, name


@pytest.mark.parametrize(("config", "P", "S", "width"), CASES)
def test_kernels_are_plain_operations_with_padding_and_without(
    config: EncoderConfig, P: int, S: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = stack(config, P, S), pairs(config, S, width)
    with monkeypatch.context() as plain:
        plain.setattr(fused, "usable", lambda *_: False)
        expected = gradients(model, inputs)
    padded = gradients(model, inputs)
    assert not torch.equal(padded[0], expected[0])  # the kernels did run
    assert_close(padded, expected)
    rows = fused.packed_rows(int(inputs.lengths.sum(-1).max()))
    assert_close(gradients(model, Packable.of(inputs, rows)), expected)


def test_what_is_left_of_the_rows_has_no_part_in_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in no sequence get whatever lies in memory; no score and no gradient may hear of it."""
    model, inputs = stack(BERT, 2, 1), pairs(BERT, 1, 24)
    room = fused.packed_rows(int(inputs.lengths.sum(-1).max())) + fused.STEP
    expected = gradients(model, Packable.of(inputs, room))
    empty = torch.Tensor.new_empty

    def littered(self: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        made = empty(self, *args, **kwargs)
        return made.fill_(1e3) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", littered)
    assert_close(gradients(model, Packable.of(inputs, room)), expected)


def test_more_tokens_than_rows_are_refused() -> None:
    model, inputs = stack(BERT, 1, 1), pairs(BERT, 1, 34)
    rows = int(inputs.lengths.sum()) - 1
    with pytest.raises(RuntimeError, match=f"more tokens than the {rows} rows"):
        model(Packable.of(inputs, rows))

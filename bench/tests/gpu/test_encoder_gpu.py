"""The encoder's kernels against plain operations, on a GPU."""

from __future__ import annotations

import pytest
import torch

from longtail.replicas import Replicas
from longtail.tasks.examples import Packable, Ragged
from longtail_bench.encoder import (
    blocks as encoder_blocks,
)
from longtail_bench.encoder import (
    fused as encoder_fused,
)
from longtail_bench.encoder import (
    gradients as encoder_gradients,
)
from longtail_bench.encoder import (
    layers as encoder_pass,
)
from longtail_bench.encoder.plain import Encoder, EncoderConfig
from longtail_bench.wsd.model import SentencePairs

pytestmark = pytest.mark.gpu
BERT = EncoderConfig(500, 384, 3, 12, 1536, 128)
MPNET = EncoderConfig(500, 192, 3, 3, 512, 140, 0, 1e-6, "gelu", 1, 2, 32, kind="mpnet")


def pairs(pad: int, lead: tuple[int, ...], width: int) -> Ragged:
    at = torch.arange(width)
    lengths = torch.randint(width // 2, width + 1, lead)
    ids = torch.randint(4, 500, (*lead, width))
    ids = torch.where((at == lengths[..., None] // 2) | (at == lengths[..., None] - 1), 3, ids)
    return Ragged(ids.masked_fill(at >= lengths[..., None], pad).cuda(), lengths.cuda())


def stack(config: EncoderConfig, P: int, S: int) -> Replicas:
    torch.manual_seed(0)
    found = Replicas([SentencePairs(Encoder(config), 3) for _ in range(S)], P)
    for p in found.parameters():
        p.data.add_(0.05 * torch.randn_like(p))
    return found.cuda()


def gradients(model: Replicas, inputs: Ragged, bf16: bool) -> tuple[torch.Tensor, dict]:
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        scores = model(inputs)
    torch.nn.functional.softplus(scores).sum().backward()
    return scores.detach(), {n: p.grad for n, p in model.named_parameters()}


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("config", "P", "S", "width"),
    [(BERT, 1, 1, 64), (BERT, 2, 2, 80), (BERT, 4, 1, 96), (MPNET, 2, 1, 128)],
)
def test_kernels_agree_with_fp32(
    config: EncoderConfig, P: int, S: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = stack(config, P, S), pairs(config.pad, (S, 12), width)
    exact, expected = gradients(model, inputs, bf16=False)
    scores, found = gradients(model, inputs, bf16=True)
    with monkeypatch.context() as patch:
        patch.setattr(encoder_fused, "usable", lambda *_: False)
        plain, rounded = gradients(model, inputs, bf16=True)
    assert not torch.equal(scores, plain)  # the kernels did run
    assert error(scores, exact) < max(2e-2, 1.5 * error(plain, exact))
    for name, value in expected.items():
        assert found[name].dtype == torch.float32
        limit = max(2e-2, 1.5 * error(rounded[name], value))
        assert error(found[name], value) < limit, name


@pytest.mark.parametrize(("config", "width"), [(BERT, 64), (MPNET, 100)])
def test_the_first_position_alone_is_that_of_all(config: EncoderConfig, width: int) -> None:
    model, inputs = stack(config, 2, 2), pairs(config.pad, (2, 11), width)
    encoders = [member.encoder for member in model.members]
    found = []
    for first in (False, True):
        model.zero_grad()
        stacked = encoders[0].stacked_parameters(encoders)
        with torch.autocast("cuda", torch.bfloat16):
            hidden = encoders[0].embed(stacked, inputs.padded)
            hidden = encoders[0].encode(stacked, hidden, inputs.mask(), first=first)
        cls = hidden if first else hidden[:, :, 0]
        cls.square().sum().backward()
        grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        found.append((cls.detach(), grads))
    (whole, expected), (alone, grads) = found
    assert alone.shape == (4, 11, config.hidden)
    assert error(alone, whole) < 1e-2
    assert grads.keys() == expected.keys()
    for name, value in expected.items():
        assert error(grads[name], value) < 2e-2, name


def encoded(model: Replicas, inputs: Ragged, first: bool) -> tuple[torch.Tensor, dict]:
    """Hidden states that count, and all gradients, by the kernels."""
    encoders = [member.encoder for member in model.members]
    model.zero_grad()
    stacked = encoders[0].stacked_parameters(encoders)
    with torch.autocast("cuda", torch.bfloat16):
        hidden = encoders[0].embed(stacked, inputs.padded)
        hidden = encoders[0].encode(stacked, hidden, inputs.mask(), first=first)
    if not first:
        hidden = hidden * inputs.mask().repeat(len(encoders), 1, 1)[..., None]
    (hidden**3).sum().backward()
    return hidden.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("config", "P", "S"), [(BERT, 1, 1), (BERT, 4, 1), (MPNET, 2, 2)])
def test_large_batches_multiply_layer_by_layer_to_the_same(
    config: EncoderConfig, P: int, S: int, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = stack(config, P, S), pairs(config.pad, (S, 7), 72)
    hidden, expected = encoded(model, inputs, first)
    expected = {name: value.clone() for name, value in expected.items()}
    monkeypatch.setattr(encoder_gradients, "TOGETHER", 7 * 72 - 1)
    other, found = encoded(model, inputs, first)
    assert torch.equal(hidden, other)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert error(found[name], value) < 1e-4, name


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("config", [BERT, MPNET])
def test_block_sizes_do_not_change_results(
    config: EncoderConfig, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = stack(config, 2, 1), pairs(config.pad, (1, 9), 100)
    inputs.lengths[0, 1:3] = torch.tensor([1, 5], device="cuda")  # most blocks are padding alone
    at = torch.arange(100, device="cuda")
    inputs = Ragged(
        inputs.padded.masked_fill(at >= inputs.lengths[..., None], config.pad), inputs.lengths
    )
    hidden, expected = encoded(model, inputs, first)
    expected = {name: value.clone() for name, value in expected.items()}
    sizes = {
        "NORM_FORWARD": (8, 8), "NORM_BACKWARD": (1, 4, 1), "GELU_FORWARD": (8, 128, 2),
        "GELU_BACKWARD": (16, 64, 2), "ATTENTION_FORWARD": (16, 16, 2),
        "ATTENTION_BACKWARD": (64, 64, 4), "SUMS": (16, 32, 2), "SCATTER": (16, 64, 2),
    }  # fmt: skip
    for name, value in sizes.items():
        monkeypatch.setattr(encoder_blocks, name, value)
    other, found = encoded(model, inputs, first)
    assert error(other, hidden) < 1e-2
    for name, value in expected.items():
        assert error(found[name], value) < 3e-2, name


@pytest.mark.parametrize(
    ("config", "P", "S", "width"),
    [(BERT, 1, 1, 20), (BERT, 2, 2, 80), (BERT, 4, 1, 96), (MPNET, 2, 1, 128), (MPNET, 1, 2, 40)],
)
def test_packed_sequences_are_computed_as_padded_ones(
    config: EncoderConfig, P: int, S: int, width: int
) -> None:
    model, inputs = stack(config, P, S), pairs(config.pad, (S, 12), width)
    inputs.lengths[:, 3] = 1  # a row that fills a batch up
    at = torch.arange(width, device="cuda")
    ids = inputs.padded.masked_fill(at >= inputs.lengths[..., None], config.pad)
    inputs = Ragged(ids, inputs.lengths)
    scores, expected = gradients(model, inputs, bf16=True)
    expected = {name: value.clone() for name, value in expected.items()}
    tokens = int(inputs.lengths.sum(-1).max())
    rows = encoder_fused.packed_rows(tokens)
    assert tokens <= rows < tokens + encoder_fused.STEP
    for room in (rows, rows + 3 * encoder_fused.STEP):  # other replicas may have more tokens
        other, found = gradients(model, Packable.of(inputs, room), bf16=True)
        assert error(other, scores) < 1e-2
        for name, value in expected.items():
            assert error(found[name], value) < 2e-2, name


def test_another_pass_before_backward_changes_nothing() -> None:
    model, inputs = stack(BERT, 2, 1), pairs(0, (1, 12), 64)
    _, expected = gradients(model, inputs, bf16=True)
    expected = {name: value.clone() for name, value in expected.items()}
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        scores = model(inputs)
        model(pairs(0, (1, 12), 64))
    torch.nn.functional.softplus(scores).sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None
        assert torch.equal(p.grad, expected[name]), name


def test_repeated_words_and_one_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EncoderConfig(40, 128, 1, 4, 256, 128)
    model, inputs = stack(config, 2, 2), pairs(0, (2, 12), 90)
    inputs = Ragged(inputs.padded % 40, inputs.lengths)  # each word comes often
    _, expected = encoded(model, inputs, first=True)
    expected = {name: value.clone() for name, value in expected.items()}
    _, again = encoded(model, inputs, first=True)
    assert all(torch.equal(again[name], value) for name, value in expected.items())
    monkeypatch.setattr(encoder_fused, "TOKENS", 0)  # torch's own way, which adds one by one
    _, found = encoded(model, inputs, first=True)
    for name, value in expected.items():
        assert error(found[name], value) < 1e-5, name


def test_the_same_step_gives_the_same_bits() -> None:
    model, inputs = stack(BERT, 2, 2), pairs(0, (2, 12), 80)
    first_scores, first = gradients(model, inputs, bf16=True)
    first = {name: value.clone() for name, value in first.items()}
    scores, found = gradients(model, inputs, bf16=True)
    assert torch.equal(scores, first_scores)
    assert all(torch.equal(found[name], first[name]) for name in first)


def test_frozen_embeddings_and_long_sequences() -> None:
    model, inputs = stack(BERT, 1, 1), pairs(0, (1, 3), 128)
    model.members[0].encoder.freeze_embeddings()
    _, found = gradients(model, inputs, bf16=True)
    assert {n.split(".")[-1] for n, g in found.items() if g is None} == {
        "word_table", "position_table", "type_table",
    }  # fmt: skip
    wide = EncoderConfig(500, 384, 2, 12, 512, 300)
    model, inputs = stack(wide, 1, 2), pairs(0, (2, 3), 200)
    exact, _ = gradients(model, inputs, bf16=False)
    assert error(gradients(model, inputs, bf16=True)[0], exact) < 3e-2


def test_dropout_is_repeated_in_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_pass, "HALF", torch.float32)  # so that small differences count
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(500, 128, 2, 4, 256, 64, dropout=0.3)).cuda()
    inputs = pairs(0, (12,), 40)
    weights = torch.randn(12, 40, 128, device="cuda") * inputs.mask()[..., None]
    p = encoder.get_parameter("qkv_weight")
    p.data.mul_(5)

    def total() -> torch.Tensor:
        encoder.passes.zero_()
        torch.manual_seed(1)
        with torch.autocast("cuda", torch.bfloat16):
            return (encoder(inputs.padded, inputs.mask()) * weights).double().sum()

    total().backward()
    assert p.grad is not None
    direction = p.grad / p.grad.norm()
    with torch.no_grad():
        p += 0.02 * direction
        up = total()
        p -= 0.04 * direction
        down = total()
    assert float(up - down) / 0.04 == pytest.approx(float(p.grad.norm()), rel=0.05)
    first, again = total(), total()
    assert torch.equal(first, again)
    torch.manual_seed(1)
    with torch.autocast("cuda", torch.bfloat16):  # the next pass
        other = (encoder(inputs.padded, inputs.mask()) * weights).double().sum()
    assert not torch.equal(other, first)


def test_a_batch_of_no_pairs_has_no_scores() -> None:
    scores, found = gradients(stack(BERT, 2, 1), pairs(BERT.pad, (1, 0), 64), bf16=True)
    assert scores.numel() == 0
    assert all(g is None or not g.any() for g in found.values())

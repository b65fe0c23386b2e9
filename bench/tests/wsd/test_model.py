"""Sentence pairs: what the classifier reads, stacks, and encoders that only transformers has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench_helpers.checkpoints import write_checkpoint
from longtail.methods.fisher import Fisher
from longtail.replicas import Replicas
from longtail.tasks import TensorExamples
from longtail.tasks.examples import Ragged
from longtail_bench.encoder.auto import AutoEncoder
from longtail_bench.encoder.plain import Encoder, EncoderConfig
from longtail_bench.wsd.model import SentencePairs
from longtail_bench.wsd.tasks import PAIRS

SEP = 3
CONFIG = EncoderConfig(40, hidden=16, layers=2, heads=2, intermediate=24, positions=20)


def pairs(shape: tuple[int, ...] = (4,), width: int = 12) -> Ragged:
    torch.manual_seed(0)
    lengths = torch.randint(6, width + 1, shape)
    ids = torch.randint(4, 40, (*shape, width))
    at = torch.arange(width)
    ids[..., 0] = 2
    ids = torch.where((at == lengths[..., None] // 2) | (at == lengths[..., None] - 1), SEP, ids)
    return Ragged(ids.masked_fill(at >= lengths[..., None], 0), lengths)


def test_the_score_is_the_classifier_on_the_first_token() -> None:
    torch.manual_seed(0)
    model = SentencePairs(Encoder(CONFIG), SEP)
    inputs = pairs()
    types = torch.zeros_like(inputs.padded)
    for row, ids in enumerate(inputs.padded.tolist()):
        types[row, ids.index(SEP) + 1 :] = 1
    first = model.encoder(inputs.padded, inputs.mask(), types)[:, 0]
    expected = model.outer(model.inner(first).tanh())[:, 0]
    torch.testing.assert_close(model(inputs), expected)
    torch.testing.assert_close(model(inputs.padded), expected)  # padding by its token
    wide = Ragged(torch.nn.functional.pad(inputs.padded, (0, 4)), inputs.lengths)
    torch.testing.assert_close(model(wide), expected)


def test_which_sentence_a_token_is_in_matters() -> None:
    torch.manual_seed(0)
    model = SentencePairs(Encoder(CONFIG), SEP)
    model.encoder.get_parameter("type_table").data.normal_()
    moved = torch.tensor([[2, 7, SEP, 9, 8, SEP], [2, 7, 9, SEP, 8, SEP]])
    untyped = SentencePairs(Encoder(EncoderConfig(40, 16, 2, 2, 24, 20, types=0)), SEP)
    assert untyped._read(moved)[2] is None
    assert model._read(moved)[2].tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]]  # pyright: ignore


def test_a_stack_is_its_members_one_by_one() -> None:
    torch.manual_seed(0)
    stack = Replicas([SentencePairs(Encoder(CONFIG), SEP) for _ in range(3)], policies=2)
    for p in stack.members[1].parameters():
        p.data.add_(0.1 * torch.randn_like(p))
    inputs = pairs((3, 4))
    scores = stack(inputs)
    assert scores.shape == (2, 3, 4)
    for policy in range(2):
        for seed in range(3):
            alone = stack.replica(policy, seed)
            expected = alone(Ragged(inputs.padded[seed], inputs.lengths[seed]))
            torch.testing.assert_close(scores[policy, seed], expected)


def test_the_fisher_of_single_pairs_is_their_squared_gradients() -> None:
    torch.manual_seed(1)
    model = SentencePairs(Encoder(CONFIG), SEP)
    examples = TensorExamples(pairs().padded, torch.tensor([1.0, 0.0, 0.0, 1.0]))
    found = Fisher(model, PAIRS)(examples)
    wanted = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(4):
        inputs, targets = examples[torch.tensor([i])]
        grads = torch.autograd.grad(PAIRS.loss(model(inputs), targets).sum(), model.parameters())
        wanted = [total + g**2 / 4 for total, g in zip(wanted, grads, strict=True)]
    torch.testing.assert_close(found, wanted, atol=1e-8, rtol=1e-3)


def test_scores_stay_in_fp32_under_autocast() -> None:
    torch.manual_seed(0)
    model = SentencePairs(Encoder(CONFIG), SEP)
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(pairs())
    assert scores.dtype == torch.float32
    assert not torch.equal(scores, scores.bfloat16().float())


def test_small_updates_are_not_lost_under_autocast() -> None:
    torch.manual_seed(0)
    model = SentencePairs(Encoder(CONFIG), SEP)
    before = model.encoder.get_parameter("up_weight").detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(pairs()).sum() * 1e3
    loss.backward()
    optimizer.step()
    moved = model.encoder.get_parameter("up_weight").detach() - before
    assert moved.abs().max() < 1e-5  # far less than bf16 can tell apart at 0.02
    assert (moved != 0).float().mean() > 0.5


@pytest.mark.parametrize("kind", ["DebertaV2", "ModernBert"])
def test_other_encoders_run_through_transformers(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=20,
        pad_token_id=0,
        type_vocab_size=2,
    )
    theirs = getattr(transformers, f"{kind}Model")(config)
    theirs.save_pretrained(tmp_path)
    model = SentencePairs.from_pretrained(tmp_path, SEP, frozen=True)
    assert isinstance(model.encoder, AutoEncoder)
    inputs = pairs()
    scores = model(inputs)
    assert scores.shape == (4,)
    scores.sum().backward()
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert frozen
    assert all("mbedding" in name for name in frozen)
    again = model.eval()(inputs), model(inputs)
    assert torch.equal(*again)
    with pytest.raises(ValueError, match="cannot be stacked: `stack = false` in the study file"):
        Replicas([model, model])(pairs((2, 4)))


def test_an_encoder_of_ours_comes_from_a_folder(tmp_path: Path) -> None:
    write_checkpoint(Encoder(CONFIG), tmp_path)
    model = SentencePairs.from_pretrained(tmp_path, SEP, dropout=0.25, frozen=True)
    assert isinstance(model.encoder, Encoder)
    assert model.encoder.config.dropout == model.dropout == 0.25
    assert not model.encoder.get_parameter("word_table").requires_grad
    with pytest.raises(ValueError, match="Invalid separator: 40, the encoder has 40 tokens"):
        SentencePairs(model.encoder, 40)
    with pytest.raises(ValueError, match="no folder 'nowhere/at/all'"):
        SentencePairs.from_pretrained("nowhere/at/all", SEP)


def checkpoint(folder: Path, pooler: dict[str, torch.Tensor], prefix: str = "") -> Path:
    """An encoder's checkpoint with these tensors beside, all under a name of the whole model."""
    torch.manual_seed(0)
    write_checkpoint(Encoder(CONFIG), folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {prefix + k: v for k, v in {**tensors, **pooler}.items()}, folder / "model.safetensors"
    )
    return folder


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_the_pooler_of_a_checkpoint_is_the_first_layer_of_the_classifier(tmp_path, prefix) -> None:
    pooler = {"pooler.dense.weight": torch.randn(16, 16), "pooler.dense.bias": torch.randn(16)}
    found = []
    for name, tensors in (("with", pooler), ("without", {})):
        source = checkpoint(tmp_path / name, tensors, prefix)
        torch.manual_seed(5)
        found.append(SentencePairs.from_pretrained(source, SEP))
    ours, new = found
    assert torch.equal(ours.inner.weight, pooler["pooler.dense.weight"])
    assert torch.equal(ours.inner.bias, pooler["pooler.dense.bias"])
    assert all(p.requires_grad for p in ours.inner.parameters())
    assert new.inner.weight.std() < 0.03  # as BERT starts one
    assert not new.inner.bias.any()
    assert torch.equal(ours.outer.weight, new.outer.weight)  # the seed's, with or without


def test_a_pooler_of_another_width_is_refused(tmp_path) -> None:
    pooler = {"pooler.dense.weight": torch.randn(8, 16), "pooler.dense.bias": torch.randn(8)}
    with pytest.raises(ValueError, match=r"pooler.dense.weight is \[8, 16\], not \[16, 16\]"):
        SentencePairs.from_pretrained(checkpoint(tmp_path, pooler), SEP)

"""The encoder is transformers' model: same numbers, same gradients, alone and stacked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch.func import functional_call

from bench_helpers.checkpoints import write_checkpoint
from longtail.replicas import Replicas
from longtail_bench.encoder.auto import load_encoder
from longtail_bench.encoder.plain import Encoder, EncoderConfig
from longtail_bench.encoder.weights import locate, read_config

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
KINDS = ["Bert", "MPNet", "Roberta"]


def reference(kind: str, seed: int = 0, **changes):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**SIZES | changes)
    model = getattr(transformers, f"{kind}Model")(config, add_pooling_layer=False).eval()
    for p in model.parameters():  # biases and gains that a mistake would show in
        p.data.add_(torch.randn_like(p) * 0.3)
    return model


def batch(pad: int, seed: int = 0, shape: tuple[int, ...] = (4, 11)) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(seed)
    ids = torch.randint(4, 40, shape)
    lengths = torch.randint(3, shape[-1] + 1, shape[:-1])
    mask = torch.arange(shape[-1]) < lengths[..., None]
    types = (torch.arange(shape[-1]) > lengths[..., None] // 2) & mask
    return ids.masked_fill(~mask, pad), mask, types.long()


def call(kind: str, model, ids, mask, types):
    given = {} if kind == "MPNet" else {"token_type_ids": types}
    return model(input_ids=ids, attention_mask=mask.long(), **given).last_hidden_state


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_and_gradients_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    types = {"type_vocab_size": 2} if kind == "Roberta" else {}
    theirs = reference(kind, **types)
    theirs.save_pretrained(tmp_path)
    ours = Encoder.from_pretrained(tmp_path, dropout=0.0)
    ids, mask, types = batch(ours.config.pad)
    expected, found = call(kind, theirs, ids, mask, types), ours(ids, mask, types)
    torch.testing.assert_close(found[mask], expected[mask], atol=1e-5, rtol=1e-5)

    (expected[mask] ** 3).sum().backward()
    (found[mask] ** 3).sum().backward()
    theirs_by_name = dict(theirs.named_parameters())
    word = theirs_by_name["embeddings.word_embeddings.weight"].grad
    torch.testing.assert_close(ours.get_parameter("word_table").grad, word, atol=1e-3, rtol=1e-4)
    up = [theirs_by_name[f"encoder.layer.{i}.intermediate.dense.weight"].grad for i in range(3)]
    up_grad = ours.get_parameter("up_weight").grad
    torch.testing.assert_close(up_grad, torch.stack(up), atol=1e-3, rtol=1e-4)
    if kind == "MPNet":
        relative = theirs_by_name["encoder.relative_attention_bias.weight"].grad
        found_relative = ours.get_parameter("relative").grad
        torch.testing.assert_close(found_relative, relative, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_a_stack_is_its_members_one_by_one(kind: str) -> None:
    torch.manual_seed(0)
    config = EncoderConfig(40, 16, 2, 2, 24, 20, kind=kind)
    if kind == "mpnet":
        config = EncoderConfig(40, 16, 2, 2, 24, 20, 0, 1e-6, "gelu", 1, 2, 32, kind=kind)
    models = [Encoder(config) for _ in range(3)]
    stack = Replicas(models, policies=2)
    for p in stack.members[1].parameters():
        p.data.add_(0.1 * torch.randn_like(p))
    ids, mask, types = batch(config.pad, shape=(3, 4, 11))
    inputs = (ids, mask, types if config.types else None)
    out = stack(inputs)
    assert out.shape == (2, 3, 4, 11, 16)
    out.square().sum().backward()
    for policy in range(2):
        for seed in range(3):
            alone = stack.replica(policy, seed)
            expected = alone(*(None if x is None else x[seed] for x in inputs))
            torch.testing.assert_close(out[policy, seed], expected, atol=1e-5, rtol=1e-5)
            expected.square().sum().backward()
            for name, p in alone.named_parameters():
                grad = stack.members[policy].get_parameter(name).grad[seed]
                torch.testing.assert_close(grad, p.grad, atol=2e-4, rtol=1e-4)


def test_a_stack_answers_with_other_weights() -> None:
    torch.manual_seed(0)
    config = EncoderConfig(40, 16, 2, 2, 24, 20)
    stack = Replicas([Encoder(config) for _ in range(3)], policies=2)
    inputs = batch(config.pad, shape=(3, 4, 11))
    others = {name: p.detach() + 0.1 * torch.randn_like(p) for name, p in stack.named_parameters()}
    answer = functional_call(stack, others, (inputs,))  # as LwF asks the last task's weights
    assert not torch.allclose(answer, stack(inputs))
    stack.load_state_dict(others, strict=False)
    assert torch.equal(answer, stack(inputs))


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_the_first_position_alone_is_that_of_all(kind: str) -> None:
    torch.manual_seed(0)
    config = EncoderConfig(40, 16, 3, 2, 24, 20)
    if kind == "mpnet":
        config = EncoderConfig(40, 16, 3, 2, 24, 20, 0, 1e-6, "gelu", 1, 2, 32, kind=kind)
    encoder = Encoder(config)
    for p in encoder.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    ids, mask, _ = batch(config.pad)
    found = []
    for first in (False, True):
        stacked = encoder.lifted()
        hidden = encoder.encode(stacked, encoder.embed(stacked, ids[None]), mask[None], first=first)
        cls = hidden if first else hidden[:, :, 0]
        assert cls.shape == (1, 4, 16)
        grads = torch.autograd.grad(cls.pow(3).sum(), list(encoder.parameters()))
        found.append((cls.detach(), *grads))
    for whole, alone in zip(*found, strict=True):
        assert float((alone - whole).norm()) <= 1e-5 * float(whole.norm())


def test_a_batch_of_no_sequences_has_no_states(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = "torch.nn.functional.scaled_dot_product_attention"
    monkeypatch.setattr(attention, lambda *_, **__: None)  # what CUDA's is for no sequences
    encoder = Encoder(EncoderConfig(40, 16, 2, 2, 24, 20))
    ids, mask = torch.zeros(0, 11, dtype=torch.int64), torch.zeros(0, 11, dtype=torch.bool)
    out = encoder(ids, mask)
    assert out.shape == (0, 11, 16)
    out.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in encoder.parameters())
    stacked = encoder.lifted()
    hidden = encoder.embed(stacked, ids[None])
    assert encoder.encode(stacked, hidden, mask[None], first=True).shape == (1, 0, 16)
    stack = Replicas([encoder, encoder], policies=2)
    inputs = ids.expand(2, 0, 11), mask.expand(2, 0, 11)
    assert stack(inputs).shape == (2, 2, 0, 11, 16)


def test_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(40, 16, 2, 2, 24, 20))
    ids, mask, types = batch(0)
    wide = [torch.nn.functional.pad(x, (0, 5)) for x in (ids, mask, types)]
    a, b = encoder(ids, mask, types), encoder(*wide)[:, :11]
    torch.testing.assert_close(a[mask], b[mask], atol=1e-6, rtol=1e-6)


def test_only_matrix_products_are_rounded_under_autocast() -> None:
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(40, 16, 2, 2, 24, 20))
    ids, mask, types = batch(0)
    exact = encoder(ids, mask, types)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = encoder(ids, mask, types)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded[mask], exact[mask], atol=0.05, rtol=0.05)
    rounded.square().mean().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in encoder.parameters())


def test_dropout_acts_in_training_alone() -> None:
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(40, 16, 2, 2, 24, 20, dropout=0.5))
    ids, mask, types = batch(0)
    assert not torch.equal(encoder(ids, mask, types), encoder(ids, mask, types))
    assert encoder.passes == 2
    encoder.eval()
    assert torch.equal(encoder(ids, mask, types), encoder(ids, mask, types))
    assert encoder.passes == 2


def test_frozen_embeddings_get_no_gradient() -> None:
    encoder = Encoder(EncoderConfig(40, 16, 2, 2, 24, 20))
    encoder.freeze_embeddings()
    ids, mask, types = batch(0)
    encoder(ids, mask, types).square().mean().backward()
    without = {name for name, p in encoder.named_parameters() if p.grad is None}
    assert without == {"word_table", "position_table", "type_table"}


@pytest.mark.parametrize(("kind", "offset"), [("bert", 0), ("roberta", 2), ("mpnet", 2)])
def test_a_config_that_leaves_out_the_padding_means_its_kinds(
    kind: str, offset: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "model_type": kind}))
    assert read_config(tmp_path).position_offset == offset
    without = json.dumps({**SIZES, "model_type": kind, "pad_token_id": None})
    (tmp_path / "config.json").write_text(without)
    assert read_config(tmp_path).position_offset == offset


def test_mistakes_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    encoder = Encoder(EncoderConfig(40, 16, 2, 2, 24, 20))
    ids = torch.zeros(1, 21, dtype=torch.long)
    with pytest.raises(ValueError, match="21 tokens, but the encoder has 20 positions"):
        encoder(ids, ids == 0)
    write_checkpoint(encoder, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["encoder.layer.1.attention.self.key.weight"]
    tensors["encoder.layer.0.output.dense.bias"] = torch.zeros(3)
    save_file(tensors, path)
    with pytest.raises(ValueError, match="does not fit its config") as error:
        Encoder.from_pretrained(tmp_path)
    assert "encoder.layer.1.attention.self.key.weight is missing" in str(error.value)
    assert "encoder.layer.0.output.dense.bias is [3], not [16]" in str(error.value)
    path.unlink()
    with pytest.raises(ValueError, match="has neither model"):
        Encoder.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match="model_type 'gpt2' has no fast encoder"):
        Encoder.from_pretrained(tmp_path)
    for content, reason in (
        (b"\xff", "cannot be read: 'utf-8'"),
        (b"{", "cannot be read: "),
        (b"[]", "holds a list, not the settings of a model"),
        (b'{"model_type": ["bert"]}', "model_type .'bert'. is not a name"),
    ):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(ValueError, match=rf"config\.json:? {reason}"):
            Encoder.from_pretrained(tmp_path)
        with pytest.raises(ValueError, match=rf"config\.json:? {reason}"):
            load_encoder(tmp_path)
    with pytest.raises(ValueError, match="Unknown activation 'swish'"):
        EncoderConfig(40, 16, 2, 2, 24, 20, activation="swish")
    with pytest.raises(ValueError, match="hidden 16 is no multiple of heads 3"):
        EncoderConfig(40, 16, 2, 3, 24, 20)


@pytest.mark.slow
def test_the_real_minilm_is_that_of_transformers() -> None:
    folder = os.environ.get("LONGTAIL_MINILM")
    if not folder:
        pytest.skip("LONGTAIL_MINILM names no folder with all-MiniLM-L6-v2")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    ours = Encoder.from_pretrained(folder).eval()
    torch.manual_seed(0)
    ids = torch.randint(1000, 30000, (6, 50))
    mask = torch.arange(50) < torch.tensor([50, 40, 3, 20, 33, 49])[:, None]
    types = (torch.arange(50) > 20).long().expand(6, -1)
    with torch.no_grad():
        expected, found = call("Bert", theirs, ids, mask, types), ours(ids, mask, types)
    torch.testing.assert_close(found[mask], expected[mask], atol=1e-5, rtol=1e-5)


def test_a_checkpoint_is_found_in_the_home_folder(tmp_path: Path, monkeypatch):
    (tmp_path / "bert").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/bert") == tmp_path / "bert"

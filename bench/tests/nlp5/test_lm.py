"""Our Llama against transformers', generation against `generate`, losses against hand-made ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longtail import ContinualAdamW
from longtail.methods import DERPlusPlus
from longtail.tasks import Ragged
from longtail_bench.decoder import answers as causal_lm
from longtail_bench.decoder.answers import ANSWERS, TOP
from longtail_bench.decoder.generate import Generator
from longtail_bench.decoder.gguf import convert
from longtail_bench.decoder.hf import TransformersLM
from longtail_bench.decoder.llama import Llama, LlamaConfig, is_llama, read_weights
from longtail_bench.decoder.load import load, with_adapters
from longtail_bench.decoder.tokens import Bytes, Pretrained

transformers = pytest.importorskip("transformers")
END = 96
NOTHING = torch.empty(0)  # targets: the answers are among the inputs


def their_llama(tied: bool, head_dim: int = 16, hidden: int = 48) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=hidden, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=80, head_dim=head_dim, tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0}, rms_norm_eps=1e-5,
        initializer_range=0.3, bos_token_id=None, eos_token_id=END, pad_token_id=END,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def their_gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3,
        bos_token_id=END, eos_token_id=END,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def batch(lengths: list[int], answers: list[int]) -> dict[str, Ragged]:
    """Random texts of these lengths that end in answers of these lengths."""
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(0, 96, (n,), generator=generator) for n in lengths]
    ends = [row[-n:] for row, n in zip(rows, answers, strict=True)]
    return {"ids": ragged(rows), "answer": ragged(ends)}


def ragged(rows: list[Tensor]) -> Ragged:
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return Ragged(padded, torch.tensor([len(row) for row in rows]))


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    model = their_llama(request.param)
    model.save_pretrained(tmp_path)
    return tmp_path, model


def test_llama_is_transformers_llama(saved: tuple[Path, Any]) -> None:
    folder, theirs = saved
    assert is_llama(folder)
    ours = load(str(folder))
    assert isinstance(ours, Llama)
    inputs = batch([9, 14, 5], [2, 5, 1])
    outputs = ours(inputs)
    for i, (ids, length) in enumerate(zip(*inputs["ids"], strict=True)):
        n = int(inputs["answer"].lengths[i])
        expected = theirs(ids[None, :length]).logits[0, -n - 1 : -1]
        torch.testing.assert_close(outputs["logits"].padded[i, :n], expected, rtol=0, atol=1e-5)


def test_gradients_are_those_of_transformers(saved: tuple[Path, Any]) -> None:
    folder, theirs = saved
    ours, wrapped = load(str(folder)), TransformersLM(theirs)
    inputs = batch([9, 14, 5], [2, 5, 1])
    losses = []
    for model in (ours, wrapped):
        loss = ANSWERS.loss(model(inputs), NOTHING).mean()
        loss.backward()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses)
    assert isinstance(ours, Llama)
    blocks: Any = ours.blocks
    pairs = [
        (ours.embed.weight, theirs.model.embed_tokens.weight),
        (ours.norm, theirs.model.norm.weight),
        (blocks[1].down.weight, theirs.model.layers[1].mlp.down_proj.weight),
        (blocks[0].norm1, theirs.model.layers[0].input_layernorm.weight),
    ]
    for a, b in pairs:
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    qkv = [getattr(theirs.model.layers[2].self_attn, f"{n}_proj").weight.grad for n in "qkv"]
    torch.testing.assert_close(blocks[2].qkv.weight.grad, torch.cat(qkv), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [their_gpt2, lambda: their_llama(False)], ids=["gpt2", "llama"])
def test_wrapped_models_see_no_padding(make: Any) -> None:
    theirs = make()
    model = TransformersLM(theirs)
    inputs = batch([9, 14, 5], [2, 5, 1])
    outputs = model(inputs)
    for i, (ids, length) in enumerate(zip(*inputs["ids"], strict=True)):
        n = int(inputs["answer"].lengths[i])
        expected = theirs(ids[None, :length]).logits[0, -n - 1 : -1]
        torch.testing.assert_close(outputs["logits"].padded[i, :n], expected, rtol=1e-4, atol=1e-4)


def greedy(model: Any, prompt: list[int], limit: int, end: int = -1) -> list[int]:
    """Token by token, without a cache."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(limit):
            token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
            if token == end:
                break
            ids.append(token)
    return ids[len(prompt) :]


@pytest.mark.parametrize("ours", [True, False], ids=["llama", "transformers"])
def test_generation_in_batches_is_greedy_generation(ours: bool, tmp_path: Path) -> None:
    theirs = their_llama(False)
    theirs.save_pretrained(tmp_path)
    model = load(str(tmp_path)) if ours else TransformersLM(theirs)
    generator = torch.Generator().manual_seed(2)
    prompts = [
        torch.randint(0, 96, (n,), generator=generator).tolist() for n in (7, 3, 12, 1, 9, 30, 4)
    ]
    end = greedy(theirs, prompts[0], 5)[-1]  # so that some answers end before their limit
    expected = [greedy(theirs, prompt, 10, end) for prompt in prompts]
    assert len({len(answer) for answer in expected}) > 1
    assert Generator(end, batch=3)(model, prompts, 10) == expected
    assert Generator(end)(model, prompts, 10) == expected
    assert Generator(end)(model, [], 10) == []


def test_half_precision_follows_the_weights() -> None:
    torch.manual_seed(0)
    model = Llama(LlamaConfig(97, 48, 2, 4, 2, 80, tied=False))
    generate = Generator(END, half=True)
    first = generate(model, [[1, 2, 3]], 6)
    with torch.no_grad():
        model.norm.neg_()
    assert generate(model, [[1, 2, 3]], 6) == Generator(END, half=True)(model, [[1, 2, 3]], 6)
    assert generate(model, [[1, 2, 3]], 6) != first
    assert model.embed.weight.dtype == torch.float32  # a copy was made


def outputs_of(logits: list[Any], answers: list[list[int]]) -> dict[str, Any]:
    sizes = torch.tensor([len(answer) for answer in answers])
    padded = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in logits], batch_first=True)
    answer = nn.utils.rnn.pad_sequence([torch.tensor(a) for a in answers], batch_first=True)
    return {"logits": Ragged(padded, sizes), "answer": answer}


def test_the_loss_is_the_mean_over_answer_tokens() -> None:
    even = [0.0, 0.0]
    outputs = outputs_of([[even, even], [[0.0, 20.0]]], [[0, 1], [1]])
    expected = torch.tensor([torch.log(torch.tensor(2.0)), 0.0])
    torch.testing.assert_close(ANSWERS.loss(outputs, NOTHING), expected, rtol=0, atol=1e-6)


def test_all_tokens_must_be_right() -> None:
    outputs = outputs_of([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0]], [[0.0, 1.0]]], [[0, 1], [1], [0]])
    assert ANSWERS.main.function(outputs, NOTHING).tolist() == [0.0, 1.0, 0.0]


def test_distance_is_over_the_largest_stored_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal_lm, "TOP", 2)
    then = outputs_of([[[5.0, 1.0, 4.0], [0.0, 7.0, 6.0]], [[3.0, 2.0, 1.0]]], [[0, 0], [0]])
    kept = causal_lm.remember(then)
    assert kept["tokens"].padded[0].tolist() == [[0, 2], [1, 2]]
    assert causal_lm.distance(then, kept).tolist() == [0.0, 0.0]
    now = outputs_of([[[6.0, 9.0, 4.0], [9.0, 7.0, 9.0]], [[3.0, 4.0, 9.0]]], [[0, 0], [0]])
    # first row: (1 + 0)/2 and (0 + 9)/2, mean 2.5; second: (0 + 4)/2
    assert causal_lm.distance(now, kept).tolist() == [2.5, 2.0]


def test_derpp_keeps_the_largest_logits_of_answers() -> None:
    model = Llama(LlamaConfig(97, 48, 1, 4, 2, 80))
    method = DERPlusPlus(model, ANSWERS, buffer=8)
    inputs = batch([9, 14, 5], [2, 5, 1])
    targets = torch.arange(3)
    for _ in range(2):
        method.loss((inputs, targets)).backward()
        method.observe((inputs, targets))
    _, _, kept = method.buffer.draw(8)
    assert kept["values"].padded.shape == (6, 5, TOP)  # all there are
    before = method.loss((inputs, targets))
    method.settings = DERPlusPlus.Settings(buffer=8, alpha=0.0)
    method.buffer.draws -= 2
    torch.testing.assert_close(
        method.loss((inputs, targets)), before
    )  # nothing changed: distance 0


def test_adapters_alone_are_trained() -> None:
    pytest.importorskip("peft")
    torch.manual_seed(0)
    model = with_adapters(Llama(LlamaConfig(97, 48, 2, 4, 2, 80)), 4)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = ContinualAdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        ANSWERS.loss(model(batch([9, 14], [2, 5])), NOTHING).mean().backward()
        optimizer.step()
        optimizer.end_task()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert 0 < trained < sum(p.numel() for p in model.parameters()) / 2
    assert Generator(END)(model, [[1, 2, 3]], 3)


def test_what_is_not_plain_llama_goes_through_transformers(tmp_path: Path) -> None:
    their_gpt2().save_pretrained(tmp_path)
    assert isinstance(load(str(tmp_path)), TransformersLM)
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(str(tmp_path / "nothing"))


def test_bytes() -> None:
    texts = ["Où?", ""]
    rows = Bytes().encode(texts)
    assert Bytes().decode([[*row, Bytes.end] for row in rows]) == texts


def test_gguf_becomes_a_folder(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    theirs = their_llama(True)
    theirs.save_pretrained(tmp_path / "theirs")
    write_gguf(gguf, theirs, tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", tmp_path / "ours")
    inputs = batch([9, 14, 5], [2, 5, 1])
    ours, expected = (load(str(tmp_path / name))(inputs) for name in ("ours", "theirs"))
    torch.testing.assert_close(ours["logits"].padded, expected["logits"].padded, rtol=0, atol=0)
    tokens = Pretrained(str(tmp_path / "ours"))
    assert tokens.encode(["ab12"]) == [[3, 2, 4]]  # digits one by one, though "12" is a token
    assert tokens.end == END
    with pytest.raises(ValueError, match="no such file"):
        convert(tmp_path / "none.gguf", tmp_path / "x")
    (tmp_path / "text.gguf").write_text("no such thing at all, but long enough for a header")
    with pytest.raises(ValueError, match="is not a GGUF file"):
        convert(tmp_path / "text.gguf", tmp_path / "x")
    write_gguf(gguf, theirs, tmp_path / "other.gguf", splitting="llama-bpe")
    with pytest.raises(
        ValueError, match=r"tokenizer\.ggml\.pre is 'llama-bpe'; known here: smollm"
    ):
        convert(tmp_path / "other.gguf", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_quantised_gguf_file_is_read_as_gguf_itself_does(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    write_gguf(gguf, their_llama(True, hidden=64), tmp_path / "m.gguf", quantised=True)
    convert(tmp_path / "m.gguf", tmp_path / "ours")
    found = read_weights(tmp_path / "ours/model.safetensors")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    for theirs, name in (("attn_v", "self_attn.v_proj"), ("ffn_gate", "mlp.gate_proj")):
        tensor = tensors[f"blk.1.{theirs}.weight"]
        assert tensor.tensor_type == gguf.GGMLQuantizationType.Q8_0
        expected = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        assert torch.equal(found[f"model.layers.1.{name}.weight"], expected)
    assert "quantization_config" not in json.loads((tmp_path / "ours/config.json").read_text())


def test_gguf_files_of_one_name_are_not_taken_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = pytest.importorskip("gguf")
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    models = []
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
        theirs = their_llama(True)
        with torch.no_grad():
            theirs.model.norm.weight.mul_(1 + number)
        write_gguf(gguf, theirs, tmp_path / f"{number}/model.gguf")
        models.append(load(str(tmp_path / f"{number}/model.gguf")))
    norms = [model.get_parameter("norm") for model in models]
    torch.testing.assert_close(norms[1], 2 * norms[0])
    (tmp_path / "0/model.gguf").unlink()
    with pytest.raises(ValueError, match=r"no such file: .*0/model\.gguf"):
        load(str(tmp_path / "0/model.gguf"))


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    their_llama(True).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": END}))
    with pytest.raises(ValueError, match=r"tokenizer\.json of .* is damaged: EOF"):
        Pretrained(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    content = {"version": "1.0", "added_tokens": [], "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="names no token that ends a text"):
        Pretrained(str(tmp_path))
    for change in ({"hidden_size": None}, {"intermediate_size": 7}, {"num_hidden_layers": 9}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ValueError, match=rf"^{tmp_path}: config\.json and weights do not fit"):
            load(str(tmp_path))


GGUF_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
    "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip


def write_gguf(
    gguf: Any, model: Any, path: Path, splitting: str = "smollm", quantised: bool = False
) -> None:
    """As llama.cpp converts: rows of queries and keys in pairs."""
    c, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(64)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(16)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    words = ["a", "b", "1", "ab", "2", "12", *(f"t{i}" for i in range(6, 97))]
    writer.add_token_list(words)
    writer.add_token_types([1] * 96 + [3])
    writer.add_token_merges(["a b", "1 2"])
    writer.add_eos_token_id(END)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        parts = name.removesuffix(".weight").split(".")
        if parts[1] == "layers":
            kind = GGUF_NAMES[parts[-1]]
            heads = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}.get(kind)
            if heads:
                tensor = tensor.view(heads, 2, -1, tensor.shape[-1]).transpose(1, 2)
                tensor = tensor.reshape(-1, tensor.shape[-1])
            target = f"blk.{parts[2]}.{kind}.weight"
        else:
            target = {"embed_tokens": "token_embd", "norm": "output_norm"}[parts[1]] + ".weight"
        values, kind = tensor.contiguous().numpy(), gguf.GGMLQuantizationType.Q8_0
        if quantised and tensor.dim() == 2 and tensor.shape[1] % 32 == 0:
            writer.add_tensor(target, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_broken_weights_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read"):
        read_weights(path)

"""The model is Oscar's: the same numbers as transformers' BERT on the same embeddings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench_helpers.checkpoints import write_checkpoint
from longtail.replicas import Replicas
from longtail_bench.encoder.plain import Encoder, EncoderConfig
from longtail_bench.vqa.model import VisionLanguage
from longtail_bench.vqa.model.align import align
from longtail_bench.vqa.model.weights import from_pretrained, keep_words

HIDDEN, WIDTH, ANSWERS, VOCABULARY = 16, 11, 7, 30
CONFIG = EncoderConfig(VOCABULARY, HIDDEN, layers=2, heads=4, intermediate=24, positions=20)


def batch(rows: int = 5, *lead: int, seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    lengths = torch.randint(4, 10, (*lead, rows))
    ids = torch.randint(4, VOCABULARY, (*lead, rows, 10))
    return {
        "ids": ids.masked_fill(torch.arange(10) >= lengths[..., None], 0).int(),
        "cut": torch.randint(2, 5, (*lead, rows)).int(),
        "regions": torch.randn(*lead, rows, 4, WIDTH).half(),
        "count": torch.randint(0, 5, (*lead, rows)).int(),
    }


def oscar_checkpoint(folder: Path, change: dict[str, Any] | None = None) -> dict[str, Tensor]:
    """A small checkpoint as Oscar's are: names with `bert.`, no model_type, a norm of regions."""
    torch.manual_seed(1)
    H, inner = HIDDEN, 24
    state: dict[str, Tensor] = {
        "bert.embeddings.word_embeddings.weight": torch.randn(VOCABULARY, H) * 0.3,
        "bert.embeddings.position_embeddings.weight": torch.randn(20, H) * 0.3,
        "bert.embeddings.token_type_embeddings.weight": torch.randn(2, H),
        "bert.img_embedding.weight": torch.randn(H, WIDTH),
        "bert.img_embedding.bias": torch.randn(H),
        "bert.pooler.dense.weight": torch.randn(H, H),
        "bert.pooler.dense.bias": torch.randn(H),
        "classifier.0.weight": torch.randn(2 * H, H),
        "classifier.0.bias": torch.randn(2 * H),
        "classifier.2.weight": torch.randn(ANSWERS, 2 * H),
        "classifier.2.bias": torch.randn(ANSWERS),
        "cls.seq_relationship.weight": torch.randn(2, H),
    }
    linear = {
        "attention.self.query": (H, H), "attention.self.key": (H, H),
        "attention.self.value": (H, H), "attention.output.dense": (H, H),
        "intermediate.dense": (inner, H), "output.dense": (H, inner),
    }  # fmt: skip
    norms = ["bert.embeddings.LayerNorm", "bert.LayerNorm"]
    for layer in range(2):
        root = f"bert.encoder.layer.{layer}"
        for name, shape in linear.items():
            state[f"{root}.{name}.weight"] = torch.randn(shape) * 0.3
            state[f"{root}.{name}.bias"] = torch.randn(shape[0]) * 0.3
        norms += [f"{root}.attention.output.LayerNorm", f"{root}.output.LayerNorm"]
    for name in norms:
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.rand(H) + 0.5, torch.randn(H)
    for name, value in (change or {}).items():
        if value is None:
            del state[name]
        else:
            state[name] = value
    config = {
        "vocab_size": VOCABULARY, "hidden_size": H, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": inner, "max_position_embeddings": 20,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "img_feature_dim": WIDTH, "img_layer_norm_eps": 1e-5,
        "img_feature_type": "faster_r-cnn", "use_img_layernorm": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.save(state, folder / "pytorch_model.bin")
    return state


def reference(state: dict[str, Tensor], inputs: dict[str, Tensor]) -> Tensor:
    """Oscar with transformers' BERT: embeddings put together by hand, one row at a time."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=24, max_position_embeddings=20, layer_norm_eps=1e-12,
    )  # fmt: skip
    bert = transformers.BertModel(config).eval()
    own = {name.removeprefix("bert."): value for name, value in state.items()}
    found = bert.load_state_dict(own, strict=False)
    assert not found.missing_keys
    out = []
    for n in range(len(inputs["ids"])):
        ids = inputs["ids"][n].long()
        ids = ids[ids != 0]
        types = (torch.arange(len(ids)) >= inputs["cut"][n]).long()
        words = bert.embeddings(input_ids=ids[None], token_type_ids=types[None])
        regions = inputs["regions"][n, : int(inputs["count"][n])].float()
        seen = regions @ own["img_embedding.weight"].T + own["img_embedding.bias"]
        if "LayerNorm.weight" in own:
            norm = nn.LayerNorm(HIDDEN, eps=1e-5)
            norm.load_state_dict({k: own[f"LayerNorm.{k}"] for k in ("weight", "bias")})
            seen = norm(seen)
        hidden = bert.encoder(torch.cat([words, seen[None]], 1)).last_hidden_state
        inner = bert.pooler(hidden) @ own["classifier.0.weight"].T + own["classifier.0.bias"]
        out.append(inner.relu() @ own["classifier.2.weight"].T + own["classifier.2.bias"])
    return torch.cat(out)


def oscar(folder: Path, state: dict[str, Tensor], kept: list[int] | None = None) -> VisionLanguage:
    """The model of a checkpoint, with the checkpoint's own classifier."""
    model = from_pretrained(folder, WIDTH, ANSWERS, kept).eval()
    own = {name: value for name, value in state.items() if name.startswith("classifier.")}
    assert not model.load_state_dict(own, strict=False).unexpected_keys
    return model


def test_an_oscar_checkpoint_gives_oscars_numbers(tmp_path: Path) -> None:
    state = oscar_checkpoint(tmp_path)
    model = oscar(tmp_path, state)
    inputs = batch()
    with torch.no_grad():
        assert torch.allclose(model(inputs), reference(state, inputs), atol=1e-4)


def test_what_lies_under_the_mask_changes_nothing() -> None:
    torch.manual_seed(0)
    model = VisionLanguage(Encoder(CONFIG), WIDTH, ANSWERS).eval()
    inputs = batch()
    other = {name: value.clone() for name, value in inputs.items()}
    for n in range(5):
        other["regions"][n, int(inputs["count"][n]) :] = 5.0
    assert torch.allclose(model(inputs), model(other), atol=1e-6)
    seen = {**inputs, "count": torch.full((5,), 4)}
    assert not torch.allclose(model(inputs), model(seen), atol=1e-6)
    tags = {**inputs, "cut": inputs["cut"] * 0}
    assert not torch.allclose(model(inputs), model(tags), atol=1e-6)


MPNET = replace(CONFIG, types=0, relative_buckets=8, position_offset=2, kind="mpnet")


@pytest.mark.parametrize("shape", [CONFIG, MPNET])
def test_a_stack_is_its_members(shape: EncoderConfig) -> None:
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        models.append(VisionLanguage(Encoder(shape), WIDTH, ANSWERS, region_norm=1e-5))
    stack = Replicas(models, policies=2)
    inputs = batch(5, 3)
    out = stack(inputs)
    assert out.shape == (2, 3, 5, ANSWERS)
    for s, model in enumerate(models):
        alone = model({name: value[s] for name, value in inputs.items()})
        assert torch.allclose(out[0, s], alone, atol=1e-5)
        assert torch.allclose(out[1, s], alone, atol=1e-5)
    out[1].square().sum().backward()
    grads = [p.grad for p in stack.policy_parameters(1)]
    assert all(g is not None and g.abs().sum() > 0 for g in grads[:3])
    assert all(p.grad is None or not p.grad.any() for p in stack.policy_parameters(0))


def test_a_plain_encoder_gets_a_fresh_region_projection(tmp_path: Path) -> None:
    torch.manual_seed(3)
    encoder = Encoder(CONFIG)
    write_checkpoint(encoder, tmp_path)
    torch.manual_seed(4)
    model = from_pretrained(tmp_path, width=134, answers=5, dropout=0.0)
    assert model.region.weight.shape == (HIDDEN, 134)
    assert model.region_norm is not None
    assert torch.equal(
        model.encoder.get_parameter("qkv_weight"), encoder.get_parameter("qkv_weight")
    )


def test_oscar_without_a_norm_of_regions_has_none(tmp_path: Path) -> None:
    state = oscar_checkpoint(tmp_path, {"bert.LayerNorm.weight": None, "bert.LayerNorm.bias": None})
    model = oscar(tmp_path, state)
    assert model.region_norm is None
    inputs = batch()
    with torch.no_grad():
        assert torch.allclose(model(inputs), reference(state, inputs), atol=1e-4)


def test_a_checkpoints_classifier_is_left(tmp_path: Path) -> None:
    state = oscar_checkpoint(tmp_path)
    model = from_pretrained(tmp_path, WIDTH, answers=3)
    assert model.classifier[2].weight.shape[0] == 3
    assert torch.equal(model.pooler.weight, state["bert.pooler.dense.weight"])


def test_what_does_not_fit_is_listed_by_name_and_shape(tmp_path: Path) -> None:
    oscar_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"img_embedding\.weight is \[16, 11\], not \[16, 134\]"):
        from_pretrained(tmp_path, 134, ANSWERS)
    oscar_checkpoint(tmp_path, {"bert.img_embedding.bias": None})
    with pytest.raises(ValueError, match=r"img_embedding\.bias is missing"):
        from_pretrained(tmp_path, WIDTH, ANSWERS)
    name = "bert.encoder.layer.1.output.dense.bias"
    oscar_checkpoint(tmp_path, {name: torch.zeros(3)})
    with pytest.raises(ValueError, match=r"layer\.1\.output\.dense\.bias is \[3\], not \[16\]"):
        from_pretrained(tmp_path, WIDTH, ANSWERS)


def test_words_nobody_uses_can_be_left_out(tmp_path: Path) -> None:
    state = oscar_checkpoint(tmp_path)
    inputs = batch()
    kept = [0, *sorted(set(inputs["ids"].flatten().tolist()) - {0})]
    whole, small = oscar(tmp_path, state), oscar(tmp_path, state, kept)
    place = torch.zeros(VOCABULARY, dtype=torch.int32)
    place[kept] = torch.arange(len(kept), dtype=torch.int32)
    renumbered = {**inputs, "ids": place[inputs["ids"].long()]}
    assert torch.equal(whole(inputs), small(renumbered))
    assert len(small.encoder.get_parameter("word_table")) == len(kept)
    with pytest.raises(ValueError, match="token 99"):
        keep_words(whole.encoder, [0, 99])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_single_examples_can_be_had() -> None:
    from longtail.methods.fisher import Fisher
    from longtail.tasks import CLASSIFICATION, TensorExamples

    torch.manual_seed(0)
    model = VisionLanguage(Encoder(CONFIG), WIDTH, ANSWERS)
    examples = TensorExamples(batch(6), torch.randint(0, ANSWERS, (6,)))
    single = Fisher(model, CLASSIFICATION, "example")(examples)
    assert all(torch.isfinite(f).all() for f in single)
    assert sum(float(f.sum()) for f in single) > 0


@pytest.mark.slow
def test_a_question_learns_to_find_its_region() -> None:
    """What colour is the X? The answer is in one of four regions, found by what X looks like."""
    torch.manual_seed(0)
    types, colours, width = 12, 6, 24
    of_type, of_colour = torch.randn(types, width), torch.randn(colours, width)
    shape = EncoderConfig(types + 4, hidden=64, layers=2, heads=4, intermediate=128, positions=8)
    model = VisionLanguage(Encoder(shape), width + 6, colours, region_norm=1e-12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    right = 0.0
    for _ in range(2000):
        kind = torch.rand(64, types).argsort(1)[:, :4]
        colour, place = torch.randint(colours, (64, 4)), torch.randint(4, (64, 1))
        seen = of_type[kind] + of_colour[colour] + 0.3 * torch.randn(64, 4, width)
        asked = kind.gather(1, place) + 4
        inputs = {
            "ids": torch.cat([torch.tensor([[1, 2]]).expand(64, 2), asked], 1),
            "cut": torch.full((64,), 3),
            "regions": torch.cat([seen, torch.rand(64, 4, 6)], -1),
            "count": torch.full((64,), 4),
        }
        answer = colour.gather(1, place).squeeze(1)
        outputs = model(inputs)
        optimizer.zero_grad()
        nn.functional.cross_entropy(outputs, answer).backward()
        optimizer.step()
        right = 0.98 * right + 0.02 * float((outputs.argmax(-1) == answer).float().mean())
        if right > 0.9:
            break
    assert right > 0.9


def test_weights_that_are_read_are_not_drawn_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers on the meta device would import torch's compiler: seconds for nothing."""
    monkeypatch.setattr(torch, "randn", None)
    with torch.device("meta"):
        assert Encoder(CONFIG).get_parameter("word_table").is_meta


def test_aligned_regions_lie_at_the_words_of_their_tags() -> None:
    torch.manual_seed(0)
    model = VisionLanguage(Encoder(CONFIG), WIDTH, ANSWERS, region_norm=1e-12)
    model.encoder.get_parameter("embed_gain").data.uniform_(0.5, 2)
    table = model.encoder.get_parameter("word_table").detach()
    tags = torch.randint(1, 6, (400,))
    regions = torch.randn(6, WIDTH)[tags] + 0.2 * torch.randn(400, WIDTH) + 3
    fresh = model.region.weight.detach().clone()
    align(model, regions, table[tags])
    assert torch.equal(model.region_norm.weight, model.encoder.get_parameter("embed_gain"))  # pyright: ignore
    found = model.region(regions).detach()
    assert torch.allclose(found.mean(0), table[tags].mean(0), atol=1e-5)
    nearest = torch.cdist(found, table[1:6]).argmin(1) + 1
    assert (nearest == tags).float().mean() > 0.7
    # half of what spreads the regions is the fresh layer's: what no tag says is not lost
    centred = regions - regions.mean(0)
    only = nn.functional.linear(centred, fresh)
    share = (found - found.mean(0)).flatten() @ only.flatten() / only.norm() / found.std(0).norm()
    assert share / len(regions) ** 0.5 == pytest.approx(0.5**0.5, abs=0.15)


def test_one_tag_for_all_aligns_nothing() -> None:
    model = VisionLanguage(Encoder(CONFIG), WIDTH, ANSWERS)
    with pytest.raises(ValueError, match="different tags"):
        align(model, torch.randn(9, WIDTH), torch.ones(9, HIDDEN))


def test_fresh_layers_pass_on_what_they_get() -> None:
    """With BERT's 0.02 throughout, thousands of steps read nothing off the regions."""
    torch.manual_seed(0)
    model = VisionLanguage(Encoder(CONFIG), WIDTH, ANSWERS)
    for layer in (model.region, model.pooler, model.classifier[0]):
        x = torch.randn(2000, layer.in_features)  # pyright: ignore
        assert float((x @ layer.weight.detach().T).std()) == pytest.approx(1, abs=0.2)  # pyright: ignore
    assert float(model(batch(64)).detach().std()) < 0.1

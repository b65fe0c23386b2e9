"""Encoders that transformers runs: what is asked of them, what is refused, and studies of them."""

import json
from pathlib import Path

import pytest
import torch

from bench_helpers import wsd_backbones
from longtail.cli import main
from longtail_bench.encoder.auto import AutoEncoder, can_stack, load_encoder

transformers = pytest.importorskip("transformers")


def saved(folder: Path, kind: str, **settings) -> Path:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**settings)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


def distilbert(folder: Path, vocab: int = 40) -> Path:
    return saved(
        folder, "DistilBert", vocab_size=vocab, dim=16, n_layers=2, n_heads=2, hidden_dim=24,
        max_position_embeddings=96, pad_token_id=0,
    )  # fmt: skip


def test_dropout_is_what_the_run_says_not_the_checkpoint(tmp_path: Path) -> None:
    """DistilBERT's own is 0.1, for the states and for attention."""
    distilbert(tmp_path)
    ids = torch.arange(1, 25).reshape(2, 12)
    mask = torch.ones_like(ids)
    passes = {}
    for dropout in (0.0, 0.5):
        encoder = load_encoder(tmp_path, dropout)
        assert isinstance(encoder, AutoEncoder)
        kept = [m.p for m in encoder.modules() if isinstance(m, torch.nn.Dropout)]
        assert kept
        assert set(kept) == {dropout}
        assert encoder.model.config.attention_dropout == dropout
        passes[dropout] = encoder.train()(ids, mask), encoder(ids, mask)
        assert torch.equal(*passes[dropout]) is (dropout == 0)
        assert torch.equal(encoder.eval()(ids, mask), passes[0.0][0])


def test_loading_shows_no_bar(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    distilbert(tmp_path)
    capfd.readouterr()
    load_encoder(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.is_progress_bar_enabled()  # others keep theirs


T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 40}
PART = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
PART |= {"num_attention_heads": 2}
CLIP = {"text_config": {**PART, "vocab_size": 40}, "vision_config": {**PART, "image_size": 32}}


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("T5", T5, "t5 is an encoder with a decoder"),
        ("CLIP", CLIP, "clip does not read text alone: it has no vocab_size"),
    ],
)
def test_a_model_that_is_no_encoder_of_text_is_refused(
    kind: str, settings: dict, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = saved(tmp_path / "encoder", kind, **settings)
    (source / "model.safetensors").unlink()  # its config is enough to tell
    wsd_backbones.tables(tmp_path / "tables", wsd_backbones.tokeniser(tmp_path / "one"))
    given = ["--prepared", str(tmp_path / "tables"), "--backbone", str(source)]
    assert main(["run", "wsd", *given, "--out", str(tmp_path / "run")]) == 2
    assert f"{source} cannot be loaded as an encoder: {reason}" in capsys.readouterr().err


def test_a_model_that_transformers_does_not_know_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "unheard of"}')
    with pytest.raises(ValueError, match=r"cannot be loaded as an encoder: .*unheard of") as error:
        load_encoder(tmp_path)
    assert "\n" not in str(error.value)


def test_a_model_without_a_limit_reads_pairs_of_any_length(tmp_path: Path) -> None:
    saved(tmp_path, "XLNet", vocab_size=40, d_model=16, n_layer=1, n_head=2, d_inner=24)
    encoder = load_encoder(tmp_path)
    assert encoder.config.longest > 1 << 20
    ids = torch.ones(1, 600, dtype=torch.int64)
    assert encoder(ids, torch.ones_like(ids)).shape == (1, 600, 16)


def test_only_encoders_of_ours_are_stacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_stack(wsd_backbones.backbone(tmp_path / "bert"))
    assert not can_stack(distilbert(tmp_path / "distilbert"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not can_stack("~/distilbert")
    (tmp_path / "broken").mkdir()
    for unknown in (tmp_path / "broken", tmp_path / "absent", "no/such-model-anywhere"):
        assert can_stack(unknown)  # loading it will say what is wrong


def test_a_study_trains_other_encoders_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = distilbert(wsd_backbones.tokeniser(tmp_path / "encoder"), vocab=4000)
    wsd_backbones.tables(tmp_path / "tables", source)
    data = {"backbone": str(source), "prepared": str(tmp_path / "tables"), "tasks": 2, "cap": 1}
    lines = [f"{name} = {json.dumps(value)}" for name, value in data.items()]
    text = 'benchmark = "wsd"\nmethods = ["finetune"]\n[data]\n' + "\n".join(lines)
    (tmp_path / "study.toml").write_text(text + "\n[train]\nepochs = 1\n")
    out = tmp_path / "out"
    command = ["study", str(tmp_path / "study.toml"), "--out", str(out), "--no-report"]
    assert main([*command, "--device", "cpu"]) == 0
    assert "2 runs computed" in capsys.readouterr().out
    assert len(list(out.glob("runs/*/summary.json"))) == 2
    assert not (out / "stacks").exists()

"""Adapters week after week, with the real PEFT on a tiny Llama."""

from pathlib import Path
from typing import Any

import pytest
import torch

from longtail import ContinualAdamW, load_memory, save_memory

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from longtail.integrations.peft import load_memory_of_old, renew_adapter  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def base() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    return transformers.LlamaForCausalLM(config)


def adapted(adapter: str = "default", rank: int = 2, **settings: Any) -> Any:
    config = peft.LoraConfig(r=rank, target_modules=["q_proj", "v_proj"], **settings)
    return peft.get_peft_model(base(), config, adapter_name=adapter)


def make_optimizer(model: Any) -> ContinualAdamW:
    return ContinualAdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def train(model: Any, optimizer: Any, week: int) -> None:
    generator = torch.Generator().manual_seed(week)
    for _ in range(3):
        tokens = torch.randint(20, (4, 6), generator=generator)
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    optimizer.end_task()


def test_one_adapter_week_after_week_under_another_name(tmp_path: Path) -> None:
    model = adapted()
    optimizer = make_optimizer(model)
    train(model, optimizer, 1)
    save_memory(optimizer, tmp_path, model)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(base(), tmp_path, adapter_name="de", is_trainable=True)
    later = make_optimizer(again)
    report = load_memory(later, tmp_path, again)
    assert len(report.loaded) == 4
    assert not report.new
    assert report.loaded[0].name == "model.layers.0.self_attn.q_proj.lora_A.weight"
    train(again, later, 2)
    assert {int(state["past_steps"]) for state in later.state.values()} == {6}


def test_an_adapted_layer_has_the_name_it_has_without(tmp_path: Path) -> None:
    model = adapted(modules_to_save=["lm_head"])
    optimizer = make_optimizer(model)
    train(model, optimizer, 1)
    save_memory(optimizer, tmp_path, model)
    plain = base()
    later = ContinualAdamW(plain.parameters())
    report = load_memory(later, tmp_path, plain)
    assert [change.name for change in report.loaded] == ["lm_head.weight"]
    assert len(report.dropped) == 4


@pytest.mark.parametrize("rank", [2, 3])
def test_a_new_adapter_on_top_of_merged_ones(tmp_path: Path, rank: int) -> None:
    model = adapted()
    optimizer = make_optimizer(model)
    train(model, optimizer, 1)
    train(model, optimizer, 2)
    save_memory(optimizer, tmp_path, model)
    tokens = torch.randint(20, (2, 6))
    with torch.no_grad():
        before = model(input_ids=tokens).logits
    old = {
        n: optimizer.state[p]["past_exp_avg_sq"]
        for n, p in model.named_parameters()
        if p in optimizer.state
    }
    model.peft_config["default"].r = rank
    renewed = renew_adapter(model, "week3")
    with torch.no_grad():
        torch.testing.assert_close(renewed(input_ids=tokens).logits, before, rtol=1e-4, atol=1e-5)
    later = make_optimizer(renewed)
    assert len(later.param_groups[0]["params"]) == 4
    load_memory_of_old(later, tmp_path, renewed)
    for name, parameter in renewed.named_parameters():
        if "lora" not in name:
            continue
        past = later.state[parameter]["past_exp_avg_sq"]
        dim = 0 if "lora_A" in name else 1
        assert past.shape == parameter.shape
        expected = old[name.replace("week3", "default")].mean(dim, keepdim=True).expand_as(past)
        torch.testing.assert_close(past, expected)
    train(renewed, later, 3)
    assert int(later.param_groups[0]["tasks_seen"]) == 3


def test_a_model_with_two_adapters_is_refused() -> None:
    model = adapted()
    model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="with one adapter, and this has default, second"):
        renew_adapter(model)

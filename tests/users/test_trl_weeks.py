"""A stranger's week with TRL and PEFT: `SFTTrainer`, its own metrics, adapters week after week."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from longtail import ContinualAdamW

pytest.importorskip("trl")
peft = pytest.importorskip("peft")
datasets = pytest.importorskip("datasets")

from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

from longtail.integrations.hf import ContinualCallback  # noqa: E402
from longtail.integrations.peft import renew_adapter  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

MEMORY, SCORES = "longtail_memory.safetensors", "longtail_scores.json"
LORA = {"r": 2, "target_modules": ["q_proj", "v_proj"]}


def make_tokenizer() -> Any:
    words = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(17))]
    tokens = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokens, **special)


def make_model() -> Any:
    torch.manual_seed(0)
    shape = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    return LlamaForCausalLM(
        LlamaConfig(**shape, num_attention_heads=2, eos_token_id=1, pad_token_id=0)
    )


def texts(week: int) -> Any:
    return datasets.Dataset.from_dict({"text": [f"w{week} w{i} w{i + 1}" for i in range(8)]})


def make_trainer(model: Any, folder: Path, week: int, optimizer: Any = None, **given: Any) -> Any:
    made = {"optimizers": (optimizer, None)}
    if optimizer is None:
        made = {"optimizer_cls_and_kwargs": (ContinualAdamW, {"lr": 1e-2})}
    config = SFTConfig(
        str(folder / "out"),
        per_device_train_batch_size=4,
        num_train_epochs=1,
        max_length=8,
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        save_strategy="no",
    )
    data = {"train_dataset": texts(week), "eval_dataset": texts(week)}
    return SFTTrainer(model, config, processing_class=make_tokenizer(), **data, **made, **given)


def steps_of(folder: Path) -> int:
    content = (folder / MEMORY).read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    memory = json.loads(header["__metadata__"]["memory"])
    return max(record["steps"] for record in memory["parameters"].values())


@pytest.mark.parametrize("metric", ["mean_token_accuracy", "eval_mean_token_accuracy"])
def test_trls_own_metric_and_a_stream_of_earlier_texts(tmp_path: Path, metric: str, capsys: Any):
    """Both spellings failed, after training and after the memory was written."""
    model = make_model()
    for week in (1, 2, 3):
        trainer = make_trainer(model, tmp_path, week)
        earlier = {f"week {w}": texts(w) for w in range(1, week)}
        if week == 3:
            earlier["week 1"] = texts(1).to_iterable_dataset()
        trainer.add_callback(
            ContinualCallback(memory=tmp_path, earlier=earlier, metric=metric, trainer=trainer)
        )
        trainer.train()
    told = json.loads((tmp_path / SCORES).read_text())
    assert told["metric"] == "mean_token_accuracy"
    assert told["higher_is_better"]
    last = told["weeks"][-1]
    assert last["after"] == "week 3"
    assert last["examples"] == {"week 1": 8, "week 2": 8, "week 3": 8}
    assert all(0 <= score <= 1 for score in last["scores"].values())
    entries = [e for e in trainer.state.log_history if "eval_mean_token_accuracy" in e]
    in_log = {e["eval_mean_token_accuracy"] for e in entries}
    assert {*last["scores"].values()} <= in_log
    assert "week 3: mean_token_accuracy" in capsys.readouterr().out


def test_a_metric_that_trl_does_not_give_is_told_before_the_first_step(tmp_path: Path):
    trainer = make_trainer(make_model(), tmp_path, 1)
    settings: dict[str, Any] = {"earlier": {}, "metric": "accuracy", "trainer": trainer}
    trainer.add_callback(ContinualCallback(memory=tmp_path, **settings))
    with pytest.raises(ValueError, match=r"gives loss, .*mean_token_accuracy") as error:
        trainer.train()
    assert "runtime" not in str(error.value)
    assert trainer.state.global_step == 0
    assert not (tmp_path / MEMORY).exists()


def test_an_optimizer_made_before_peft_wrapped_the_model_is_told_before_the_first_step(
    tmp_path: Path,
):
    model = make_model()
    optimizer = ContinualAdamW(model.parameters(), lr=1e-2)
    config = peft.LoraConfig(**LORA)
    trainer = make_trainer(model, tmp_path, 1, optimizer, peft_config=config)
    trainer.add_callback(ContinualCallback(memory=tmp_path))
    with pytest.raises(ValueError, match=r"lacks 4 parameters .*lora_A.*: PEFT wrapped the model"):
        trainer.train()
    assert trainer.state.global_step == 0
    trainer = make_trainer(make_model(), tmp_path, 1, peft_config=config)
    trainer.add_callback(ContinualCallback(memory=tmp_path))
    trainer.train()
    assert steps_of(tmp_path) == 2


def test_an_adapter_done_again_counts_once_and_one_that_was_lost_is_noticed(tmp_path: Path):
    config = peft.LoraConfig(**LORA)
    base, adapter = make_model(), tmp_path / "adapter"
    base.save_pretrained(tmp_path / "base")

    def week(number: int, model: Any, **given: Any) -> Any:
        trainer = make_trainer(model, tmp_path, number, **given)
        trainer.add_callback(ContinualCallback(memory=tmp_path, week=f"w{number}"))
        trainer.train()
        return trainer

    def loaded() -> Any:
        plain = LlamaForCausalLM.from_pretrained(tmp_path / "base")
        return peft.PeftModel.from_pretrained(plain, adapter, is_trainable=True)

    week(1, base, peft_config=config).save_model(str(adapter))
    week(2, loaded())
    trainer = week(2, loaded())
    assert steps_of(tmp_path) == 4
    trainer.save_model(str(adapter))
    fresh = LlamaForCausalLM.from_pretrained(tmp_path / "base")
    with pytest.raises(ValueError, match=r"is of 'w2', .*lora_[AB]\.weight differs"):
        week(3, fresh, peft_config=config)
    week(3, loaded())
    assert steps_of(tmp_path) == 6


@pytest.mark.parametrize("policy", ["continual", "kept"])
def test_a_new_adapter_on_merged_weights_goes_on(tmp_path: Path, policy: str):
    """What was merged is not compared; every row of rank gets the mean of the old ones' memory."""
    model: Any = peft.get_peft_model(make_model(), peft.LoraConfig(**LORA))
    past: list[torch.Tensor] = []

    class Start(ContinualCallback):
        def on_train_begin(self, *given: Any, **further: Any) -> None:
            super().on_train_begin(*given, **further)
            for name, p in further["model"].named_parameters():
                state = further["optimizer"].state.get(p, {})
                if "q_proj.lora_B" in name and "past_exp_avg_sq" in state:
                    past.append(state["past_exp_avg_sq"].clone())

    for week in (1, 2):
        if week == 2:
            model = renew_adapter(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        make = ContinualAdamW if policy == "continual" else torch.optim.AdamW
        optimizer = make(trained, lr=0.05)
        trainer = make_trainer(model, tmp_path, week, optimizer)
        trainer.add_callback(Start(memory=tmp_path, policy=policy))
        trainer.train()
    if policy == "continual":
        assert steps_of(tmp_path) == 4
        [b] = past
        assert torch.equal(b, b[:, :1].expand_as(b))
        assert (b > 0).any()
    else:
        assert {int(state["step"]) for state in optimizer.state.values()} == {2}

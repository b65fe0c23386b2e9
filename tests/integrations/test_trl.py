"""The callback of the HF Trainer in TRL's `SFTTrainer`, a tiny Llama on the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from longtail import ContinualAdamW

pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

from longtail.integrations.hf import ContinualCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(17))]
    tokens = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def test_two_weeks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
    )
    model, tokenizer = LlamaForCausalLM(config), make_tokenizer()
    for week in (1, 2):
        texts = [f"w{week} w{i} w{i + 1}" for i in range(8)]
        optimizer = ContinualAdamW(model.parameters(), lr=1e-3)
        trainer = SFTTrainer(
            model,
            SFTConfig(
                str(tmp_path / str(week)),
                per_device_train_batch_size=4,
                num_train_epochs=1,
                max_length=8,
                report_to=[],
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
                save_strategy="no",
            ),
            train_dataset=datasets.Dataset.from_dict({"text": texts}),
            processing_class=tokenizer,
            optimizers=(optimizer, None),
            callbacks=[ContinualCallback(memory=tmp_path)],
        )
        trainer.train()
        assert int(optimizer.param_groups[0]["tasks_seen"]) == week
        state = optimizer.state[model.model.embed_tokens.weight]
        assert int(state["past_steps"]) == 2 * week
        assert state["past_exp_avg_sq"].any()

# %% [markdown]
# # Every week with Hugging Face
#
# A classifier of messages is fine-tuned once a week, on that week's messages alone. The first week has
# many and of all topics; later ones have few and of two topics each. We use the Trainer of
# `transformers` as it is, once with a new AdamW every week, once with Continual AdamW and its memory in
# a file beside the weights. A tiny BERT with random weights stands for your model, made-up words for
# your messages: half of a message's words are of its topic, the others of any.

# %%
import torch

TOPICS = 4
WORDS = 20 * TOPICS
WEEKS = {1: (640, (0, 1, 2, 3)), 2: (48, (0, 1)), 3: (32, (2, 3)), 4: (24, (1, 2)), 5: (16, (0, 3))}


def messages(week, n, seed):
    generator = torch.Generator().manual_seed(1000 * week + seed)
    topics = torch.tensor(WEEKS[week][1])
    topic = topics[torch.randint(len(topics), (n,), generator=generator)]
    own = torch.randint(20, (n, 8), generator=generator) * TOPICS + topic[:, None]
    other = torch.randint(WORDS, (n, 8), generator=generator)
    words = torch.where(torch.rand(n, 8, generator=generator) < 0.5, own, other)
    return [{"input_ids": w, "labels": t} for w, t in zip(words, topic, strict=True)]


# %% [markdown]
# What differs between the two sides is the optimizer and one callback. It loads the memory when
# training begins, and when it ends it ends the task and saves the memory:

# %%
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from longtail import ContinualAdamW
from longtail.integrations.hf import ContinualCallback


def first_model():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=TOPICS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=None,
    )
    return BertForSequenceClassification(config)


def one_week(folder, week, continual):
    """What runs once a week, in a process of its own: all it needs is in the folder."""
    model = first_model() if week == 1 else BertForSequenceClassification.from_pretrained(folder)
    make_optimizer = ContinualAdamW if continual else torch.optim.AdamW
    trainer = Trainer(
        model,
        TrainingArguments(
            folder,
            num_train_epochs=8,
            per_device_train_batch_size=16,
            seed=week,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
        ),
        train_dataset=messages(week, WEEKS[week][0], seed=1),
        optimizers=(make_optimizer(model.parameters(), lr=3e-3, weight_decay=0.0), None),
        callbacks=[ContinualCallback(memory=folder)] if continual else [],
    )
    trainer.train()
    model.save_pretrained(folder)
    return model.eval()


# %% [markdown]
# After every week the model is asked about all weeks so far, with messages it has not seen:

# %%
import contextlib
import io
import tempfile


@torch.no_grad()
def accuracy(model, week):
    asked = messages(week, 500, seed=2)
    logits = model(torch.stack([m["input_ids"] for m in asked])).logits
    return (logits.argmax(1) == torch.stack([m["labels"] for m in asked])).float().mean().item()


scores = {}
for name, continual in (("a new AdamW", False), ("Continual AdamW", True)):
    folder = tempfile.mkdtemp()
    for week in WEEKS:
        quiet = io.StringIO()  # what the Trainer has to say
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            model = one_week(folder, week, continual)
        scores[name, week] = [accuracy(model, w) for w in range(1, week + 1)]
        print(f"{name:15} after week {week}:", *(f"{s:.2f}" for s in scores[name, week]))

# %% [markdown]
# The small weeks undo less of the large one:

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(num="Accuracy on week 1 after each week", figsize=(5, 3))
for name in ("a new AdamW", "Continual AdamW"):
    axes.plot(list(WEEKS), [scores[name, week][0] for week in WEEKS], marker="o", label=name)
axes.set(xlabel="after week", ylabel="accuracy on week 1", xticks=list(WEEKS))
axes.legend()
figure.tight_layout()

# %% [markdown]
# The folder has what next week needs:

# %%
from pathlib import Path

print(*sorted(path.name for path in Path(folder).iterdir()))

# %% [markdown]
# Scores of earlier weeks in the Trainer's own log, methods such as EWC, and TRL:
# [Hugging Face](../integrations/hf.md). The same in plain torch, in three processes and with a
# vocabulary that grows: [three weeks, three processes](three_weeks.ipynb).

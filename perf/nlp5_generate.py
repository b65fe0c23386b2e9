"""Generation in batches against one answer at a time, and training against a bare loop.

    python perf/nlp5_generate.py [--model FOLDER --data FOLDER] [--rows N] [--json FILE]

Without --model the built-in miniature: a small random model on made-up questions. Generation: the
same test questions, greedily, in length-sorted batches with a KV cache, against transformers'
`generate` (with its own cache) called for one question after another; without transformers against
our own generator one question at a time; both have answered before the clock starts. Training: a
step of the loop with Continual AdamW, as it is and (on a GPU) captured, against the same model,
batches and precision in six lines with torch's fused AdamW. Ratios of throughput, taken in turn in
one run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import provenance
import torch

from longtail.benchmarks.nlp5.lm.generate import Generator
from longtail.benchmarks.nlp5.lm.llama import Llama
from longtail.runs.build import build_run
from longtail.runs.config import resolve
from longtail.tasks.examples import rows_device
from longtail.training.cuda_graphs import WARM_UP, GraphStep
from longtail.training.step import step

LIMIT = 48  # tokens of an answer: an untrained model does not end before
BARS = {"generation": 5.0, "training": 0.9}


def seconds(work: Callable[[], Any]) -> float:
    """On a CPU those of this process, so that others on the machine do not count."""
    on_gpu = torch.cuda.is_available()
    clock = time.perf_counter if on_gpu else time.process_time
    if on_gpu:
        torch.cuda.synchronize()
    start = clock()
    work()
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - start


Answers = Callable[[list[list[int]]], list[list[int]]]


def one_at_a_time(run: Any, limit: int, half: bool) -> tuple[str, Answers]:
    """transformers' own `generate` of the same weights, or our generator with batches of one."""
    end, device = run.evaluate.tokens.end, run.device
    theirs = as_transformers(run.model)
    if theirs is None:
        single = Generator(end, batch=1, half=half, capture=False)
        return "ours, batches of one", lambda prompts: single(run.model, prompts, limit)
    theirs = theirs.to(device, torch.bfloat16 if half else torch.float32).eval()

    def work(prompts: list[list[int]]) -> list[list[int]]:
        written = []
        for prompt in prompts:
            ids = torch.tensor([prompt], device=device)
            found = theirs.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=limit,
                do_sample=False,
                eos_token_id=end,
                pad_token_id=end,
            )
            answer = found[0, len(prompt) :].tolist()
            written.append(answer[: answer.index(end)] if end in answer else answer)
        return written

    return "transformers, one at a time", work


def as_transformers(model: Any) -> Any:
    """A LlamaForCausalLM with the weights of ours."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        return None
    if not isinstance(model, Llama):
        return model.net
    c = model.config
    config = LlamaConfig(
        vocab_size=c.vocabulary, hidden_size=c.hidden, num_hidden_layers=c.layers,
        num_attention_heads=c.heads, num_key_value_heads=c.kv_heads,
        intermediate_size=c.intermediate, head_dim=c.width, rms_norm_eps=c.eps,
        tie_word_embeddings=c.tied, rope_parameters={"rope_type": "default", "rope_theta": c.theta},
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    theirs = LlamaForCausalLM(config)
    state = theirs.state_dict()
    width = c.width
    blocks: Any = model.blocks
    for i, block in enumerate(blocks):
        name = f"model.layers.{i}."
        parts = block.qkv.weight.detach().split([h * width for h in block.heads])
        for letter, part in zip("qkv", parts, strict=True):
            state[f"{name}self_attn.{letter}_proj.weight"] = part
        gate, up = block.gate_up.weight.detach().chunk(2)
        state[f"{name}mlp.gate_proj.weight"], state[f"{name}mlp.up_proj.weight"] = gate, up
        state[f"{name}mlp.down_proj.weight"] = block.down.weight.detach()
        state[f"{name}self_attn.o_proj.weight"] = block.out.weight.detach()
        state[f"{name}input_layernorm.weight"] = block.norm1.detach()
        state[f"{name}post_attention_layernorm.weight"] = block.norm2.detach()
    state["model.embed_tokens.weight"] = state["lm_head.weight"] = model.embed.weight.detach()
    state["model.norm.weight"] = model.norm.detach()
    theirs.load_state_dict(state)
    return theirs


def generation(run: Any, rows: int, single_rows: int) -> dict[str, Any]:
    """Answers a second, batched and single, for the task whose answers are longest."""
    evaluate, half = run.evaluate, run.device.type == "cuda"
    chosen: list[int] = []
    for i in range(len(run.sequence)):
        chosen += run.sequence.test(i)[torch.arange(min(rows, len(run.sequence.test(i))))][
            1
        ].tolist()
    prompts = [list(evaluate.prompts[row]) for row in chosen]
    limit = min(LIMIT, max(evaluate.limits.values()))
    batched = Generator(evaluate.tokens.end, half=half)
    every = max(1, len(prompts) // single_rows)
    asked = prompts[::every]
    name, single = one_at_a_time(run, limit, half)
    batched(run.model, prompts, limit)  # the first call makes caches, and captures
    single(asked[:1])
    found: dict[str, Any] = {}
    ours = seconds(lambda: found.update(ours=batched(run.model, prompts, limit))) / len(prompts)
    theirs = seconds(lambda: found.update(theirs=single(asked))) / len(asked)
    same = sum(a == b for a, b in zip(found["ours"][::every], found["theirs"], strict=True))
    return {
        "answers": len(prompts), "limit": limit, "against": name,
        "batched_per_second": 1 / ours, "single_per_second": 1 / theirs,
        "ratio": theirs / ours, "same_answers": same, "compared": len(asked),
    }  # fmt: skip


def training(run: Any, steps: int) -> dict[str, Any]:
    """Steps a second of the loop's step, of the captured one and of a bare one, in turn."""
    examples, size = run.sequence.train(0), run.settings.batch_size
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-6, fused=True)
    order = torch.arange(len(examples), device=rows_device(examples, run.device))
    starts = [(i * size) % max(1, len(examples) - size) for i in range(steps)]
    batches = [order[start : start + size] for start in starts]

    def bare() -> None:
        for index in batches:
            inputs, targets = examples[index]
            with run.autocast:
                loss = run.sequence.objective.loss(run.model(inputs), targets).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
            optimizer.step()

    def ours() -> None:
        for index in batches:
            step(run, examples, index)

    def captured() -> None:
        for index in batches:
            run.take_step(run, examples, index)

    ways: dict[str, Callable[[], None]] = {"bare": bare, "ours": ours}
    if isinstance(run.take_step, GraphStep):
        ways["captured"] = captured
    run.model.train()
    for work in ways.values():
        for _ in range(WARM_UP + 1 if work is captured else 1):  # each shape is captured by then
            work()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3):
        for name, work in ways.items():
            times[name].append(seconds(work))
    best = {name: min(found) / steps for name, found in times.items()}
    return {
        "batch": size,
        **{f"{name}_ms": 1000 * found for name, found in best.items()},
        "ratio": best["bare"] / best["ours"],
        **({"captured_ratio": best["bare"] / best["captured"]} if "captured" in best else {}),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a model's folder (default: the miniature)")
    parser.add_argument("--data", help="folder of the five tasks")
    parser.add_argument("--rows", type=int, default=50, help="test questions of each task")
    parser.add_argument("--single", type=int, default=30, help="questions answered one at a time")
    parser.add_argument("--steps", type=int, default=20, help="training steps timed at once")
    parser.add_argument("--max-tokens", type=int, default=256, help="tokens of a row")
    parser.add_argument("--batch", type=int, default=32, help="rows of a training step")
    parser.add_argument("--eager", action="store_true", help="do not time captured steps")
    parser.add_argument("--no-fail", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    flags: dict[str, Any] = {"data.miniature": True}
    if args.model:
        flags = {"data.model": args.model, "data.folder": args.data, "data.per_task": 500}
        flags |= {"data.test_per_task": args.rows, "data.max_tokens": args.max_tokens}
    flags["train.batch_size"] = args.batch
    if device.type == "cuda":
        flags |= {"train.autocast": "bf16", "train.cuda_graph": not args.eager}
    start = time.perf_counter()
    run = build_run(resolve("nlp5", flags=flags), device)
    settings = {"rows": args.rows, "max_tokens": args.max_tokens, "steps": args.steps}
    rows: list[dict[str, Any]] = []
    holds: dict[str, bool] = {}
    measures = {
        "generation": lambda: generation(run, args.rows, args.single),
        "training": lambda: training(run, args.steps),
    }
    for name, measure in measures.items():
        print(f"{time.perf_counter() - start:.0f} s: {name}", file=sys.stderr, flush=True)
        rows.append({"what": name, **measure()})
        holds[name] = rows[-1]["ratio"] >= BARS[name]
        if args.json:  # at once: the second may fail, or be cut off
            provenance.write(args.json, rows, device, settings=settings, holds=holds)
    print(json.dumps({"rows": rows, "holds": holds}, indent=1))
    return 0 if args.no_fail or all(holds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

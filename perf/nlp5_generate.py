"""Generation in batches against one answer at a time, and training against a bare loop.

    python perf/nlp5_generate.py [--model FOLDER --data FOLDER] [--rows N] [--json FILE]
    python perf/nlp5_generate.py --llama smollm2 [--compiled] [--json FILE]

Without --model the built-in miniature: a small random model on made-up questions. Generation: the
same test questions, greedily, in length-sorted batches with a KV cache, against transformers'
`generate` (with its own cache) called for one question after another; without transformers against
our own generator one question at a time; both have answered before the clock starts. Training: a
step of the loop with Continual AdamW, as it is and (on a GPU) captured, against the same model,
batches and precision in six lines with torch's fused AdamW. Ratios of throughput, taken in turn in
one run.

With --llama, which needs transformers and no files, our Llama and generator against transformers'
Llama of the same random weights: `generate` on the same prompts in the same length-sorted batches,
padded in front, with the same end token, limit and precision (bf16 on a GPU); and a training step,
eager and (on a GPU) captured. Below 1.5 in generation our own are not worth their lines.
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

from longtail.runs.build import build_run
from longtail.runs.config import resolve
from longtail.tasks import Ragged
from longtail.tasks.examples import rows_device
from longtail.training.cuda_graphs import WARM_UP, GraphStep
from longtail.training.step import step
from longtail_bench.decoder.answers import ANSWERS, AnswerModel
from longtail_bench.decoder.generate import Generator
from longtail_bench.decoder.hf import TransformersLM, pad_front
from longtail_bench.decoder.llama import Llama, LlamaConfig

LIMIT = 48  # tokens of an answer: an untrained model does not end before
BARS = {"generation": 5.0, "training": 0.9}
WORTH = 1.5  # times transformers' speed
SHAPES = {
    "small": LlamaConfig(257, 64, 4, 4, 2, 128),
    "smollm2": LlamaConfig(49152, 576, 30, 9, 3, 1536, theta=100_000.0),  # SmolLM2-135M
}


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


def left_padded(prompts: list[list[int]], end: int, device: torch.device) -> tuple[Any, Any]:
    """Ids and mask of a batch, padded in front as transformers' `generate` wants them."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    ids = torch.full((len(prompts), int(lengths.max())), end)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    return pad_front(ids.to(device), lengths.to(device))


def batched_generate(theirs: Any, end: int, limit: int, batch: int, **options: Any) -> Answers:
    """transformers' `generate` over length-sorted batches."""

    def work(prompts: list[list[int]]) -> list[list[int]]:
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers: list[list[int]] = [[] for _ in prompts]
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            ids, mask = left_padded([prompts[i] for i in rows], end, theirs.device)
            with torch.no_grad():
                found = theirs.generate(
                    input_ids=ids, attention_mask=mask, max_new_tokens=limit, do_sample=False,
                    num_beams=1, eos_token_id=end, pad_token_id=end, **options,
                )  # fmt: skip
            for i, row in zip(rows, found[:, ids.shape[1] :].tolist(), strict=True):
                answers[i] = row[: row.index(end)] if end in row else row
        return answers

    return work


def in_turn(ways: dict[str, Callable[[], Any]], repeats: int = 3) -> dict[str, float]:
    """The least seconds of each, after a call that warms it up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for work in ways.values():
        work()
    for _ in range(repeats):
        for name, work in ways.items():
            times[name].append(seconds(work))
    return {name: min(found) for name, found in times.items()}


def llama_generation(model: Llama, theirs: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds for all answers: ours, and `generate` on the same batches."""
    device = next(model.parameters()).device
    half, end = device.type == "cuda", model.config.vocabulary - 1
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(16, args.max_tokens, (args.prompts,), generator=draw).tolist()
    prompts = [torch.randint(0, end, (n,), generator=draw).tolist() for n in lengths]
    ours = Generator(end, args.generate_batch, half=half)
    theirs = theirs.to(device, torch.bfloat16 if half else torch.float32).eval()
    rival = batched_generate(theirs, end, LIMIT, args.generate_batch)
    answers: dict[str, list[list[int]]] = {}
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: answers.update(ours=ours(model, prompts, LIMIT)),
        "transformers": lambda: answers.update(theirs=rival(prompts)),
    }
    if args.compiled:
        static = batched_generate(
            theirs, end, LIMIT, args.generate_batch, cache_implementation="static"
        )
        ways["transformers, static cache, compiled"] = lambda: static(prompts)
    found = in_turn(ways)
    same = sum(a == b for a, b in zip(answers["ours"], answers["theirs"], strict=True))
    return {
        "prompts": len(prompts), "batch": args.generate_batch, "limit": LIMIT,
        "precision": "bf16" if half else "fp32", "seconds": found, "same_answers": same,
        "ratios": {name: found[name] / found["ours"] for name in ways if name != "ours"},
    }  # fmt: skip


def answer_batch(args: argparse.Namespace, vocabulary: int, device: Any) -> dict[str, Ragged]:
    """Random rows of up to `max_tokens` that end in answers of up to 16."""
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(args.max_tokens // 2, args.max_tokens, (args.batch,), generator=draw)
    lengths[0] = args.max_tokens
    sizes = torch.randint(1, 17, (args.batch,), generator=draw)
    sizes[0] = 16
    ids = torch.randint(0, vocabulary, (args.batch, args.max_tokens), generator=draw)
    answer = torch.randint(0, vocabulary, (args.batch, 16), generator=draw)
    return {
        "ids": Ragged(ids.to(device), lengths.to(device)),
        "answer": Ragged(answer.to(device), sizes.to(device)),
    }


def training_step(
    model: AnswerModel, batch: dict[str, Ragged], captured: bool
) -> Callable[[], None]:
    """Forward, backward, clipping and torch's fused AdamW; captured as one CUDA graph or not."""
    device = batch["ids"].padded.device.type
    options = {"capturable": True} if captured else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True, **options)

    def one() -> None:
        with torch.autocast(
            device, torch.bfloat16, enabled=device == "cuda", cache_enabled=not captured
        ):
            loss = ANSWERS.loss(model(batch), torch.empty(0)).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    if not captured:
        return one
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            one()
    torch.cuda.current_stream().wait_stream(stream)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one()
    return graph.replay


def llama_training(model: Llama, theirs: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a step of both models, in turn."""
    device = next(model.parameters()).device
    batch = answer_batch(args, model.config.vocabulary, device)
    models = {
        "ours": model.train(), "transformers": TransformersLM(theirs.to(device).float()).train(),
    }  # fmt: skip
    result: dict[str, Any] = {"batch": args.batch, "width": args.max_tokens, "ms": {}, "ratios": {}}
    for kind in ("eager", "captured") if device.type == "cuda" else ("eager",):
        try:
            steps = {n: training_step(m, batch, kind == "captured") for n, m in models.items()}
        except RuntimeError as error:  # what cannot be captured has no row
            result["ratios"][kind] = f"not captured: {' '.join(str(error).split())[:200]}"
            break

        def repeated(step: Callable[[], None]) -> Callable[[], None]:
            return lambda: [step() for _ in range(args.steps)] and None

        found = in_turn({name: repeated(step) for name, step in steps.items()})
        result["ms"][kind] = {name: 1000 * s / args.steps for name, s in found.items()}
        result["ratios"][kind] = found["transformers"] / found["ours"]
    return result


def compare_llamas(args: argparse.Namespace, device: torch.device) -> int:
    """Our Llama and generator against transformers': prints the ratios, 1 below `WORTH`."""
    torch.manual_seed(0)
    model = Llama(SHAPES[args.llama])
    theirs = as_transformers(model)
    if theirs is None:
        print("skipped: --llama needs transformers, which is not installed")
        return 0
    model = model.to(device)
    found: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for name, measure in {"generation": llama_generation, "training": llama_training}.items():
        found[name] = measure(model, theirs, args)
        rows.append({"what": name, **found[name]})
        if args.json:  # at once: the second may fail, or be cut off
            provenance.write(args.json, rows, device, settings={"shape": args.llama})
    print(json.dumps(rows, indent=1))
    for name in ("generation", "training"):
        for rival, ratio in found[name]["ratios"].items():
            text = f"{ratio:.2f}" if isinstance(ratio, float) else ratio
            print(f"{name}, {rival}: {text}")
    worth = found["generation"]["ratios"]["transformers"] >= WORTH
    print(f"generation at {WORTH} times transformers' or more: {'holds' if worth else 'MISSED'}")
    return 0 if worth or args.no_fail else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a model's folder (default: the miniature)")
    parser.add_argument("--data", help="folder of the five tasks")
    parser.add_argument("--rows", type=int, default=50, help="test questions of each task")
    parser.add_argument("--single", type=int, default=30, help="questions answered one at a time")
    parser.add_argument("--steps", type=int, default=20, help="training steps timed at once")
    parser.add_argument("--max-tokens", type=int, default=256, help="tokens of a row")
    parser.add_argument("--batch", type=int, default=32, help="rows of a training step")
    parser.add_argument("--llama", choices=tuple(SHAPES), help="ours against transformers' alone")
    parser.add_argument("--prompts", type=int, default=1024, help="with --llama: of generation")
    parser.add_argument("--generate-batch", type=int, default=256, help="with --llama: prompts")
    parser.add_argument(
        "--compiled", action="store_true", help="with --llama: `generate` compiled as well"
    )
    parser.add_argument("--eager", action="store_true", help="do not time captured steps")
    parser.add_argument("--no-fail", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if args.llama:
        return compare_llamas(args, device)
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

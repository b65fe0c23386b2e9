r"""Greedy generation in batches: prompts sorted by length, keys and values cached.

A batch of B prompts is padded at the end and read in one pass; then every row writes one token a
step, at its own position p. The cache is [L, B, K, W, D] with W fixed for the batch, so all steps
have the same shapes: on a GPU one step is captured as a CUDA graph and replayed. The G queries that
share a key in grouped-query attention are one product, [B, K, G, D] x [B, K, W, D]ᵀ, with columns
beyond p masked.

A row is finished when it writes the end token. Whether all are is asked every few steps, since on a
GPU the answer means to wait.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from longtail.support.eval_mode import evaluation_mode
from longtail_bench.decoder.answers import on_device
from longtail_bench.decoder.hf import TransformersLM, pad_front
from longtail_bench.decoder.llama import Llama, causal

ASK = 4  # steps between two questions whether all rows are finished
STEP = 64  # widths of a cache are multiples of it, so that few graphs serve all batches
SMALLEST = 16  # rows of the smallest captured batch; others are powers of two, or the full batch
GRAPHS = 24  # captured steps that are kept
READ = 4  # prompts that a CPU reads at once


class Generator:
    """Writes answers with a model; keeps what can be kept between calls.

    Args:
        end: the token that ends an answer.
        batch: prompts per batch.
        half: bfloat16 products, with a copy of the weights that each call brings up to date.
        capture: replay steps as CUDA graphs, where the model is on a GPU.
    """

    def __init__(
        self, end: int, batch: int = 256, half: bool = False, capture: bool = True
    ) -> None:
        self.end, self.batch, self.half, self.capture = end, batch, half, capture
        self._model: nn.Module | None = None
        self._copy: nn.Module | None = None
        self._steps: dict[tuple[int, int], _Step] = {}

    def __call__(
        self, model: nn.Module, prompts: Sequence[Sequence[int]], limit: int
    ) -> list[list[int]]:
        """The answer to each prompt, at most `limit` tokens, without the end token."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers: list[list[int]] = [[] for _ in prompts]
        model = self._prepared(model)
        with evaluation_mode(model), torch.no_grad(), self._precision(model):
            for rows in _batches(order, self.batch):
                found = self._generate(model, [prompts[i] for i in rows], limit)
                for i, answer in zip(rows, found, strict=True):
                    answers[i] = _until(answer, self.end)
        return answers

    def _precision(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        device = on_device(model).type
        return torch.autocast(device, torch.bfloat16, enabled=self.half)

    def _prepared(self, model: nn.Module) -> nn.Module:
        """The model, or a copy whose matrices are in half precision already."""
        if self._model is not model:  # what was captured reads another model's weights
            self._model, self._copy, self._steps = model, None, {}
        if not self.half:
            return model
        if self._copy is None:
            self._copy = copy.deepcopy(model).requires_grad_(False)
            for parameter in self._copy.parameters():
                if parameter.dim() > 1:
                    parameter.data = parameter.data.bfloat16()
        kept: list[Tensor] = list(self._copy.parameters())
        torch._foreach_copy_(kept, [p.detach() for p in model.parameters()])
        return self._copy

    def _generate(
        self, model: nn.Module, prompts: Sequence[Sequence[int]], limit: int
    ) -> list[list[int]]:
        device = on_device(model)
        captured = self.capture and device.type == "cuda" and isinstance(model, Llama)
        rows = len(prompts)
        if captured:
            rows = min(self.batch, max(SMALLEST, 1 << (rows - 1).bit_length()))
        lengths = torch.ones(rows, dtype=torch.int64)  # rows of padding are one token long
        lengths[: len(prompts)] = torch.tensor([len(prompt) for prompt in prompts])
        ids = torch.full((rows, int(lengths.max())), self.end)
        for row, prompt in zip(ids, prompts, strict=False):
            row[: len(prompt)] = torch.tensor(prompt)
        ids, lengths = ids.to(device), lengths.to(device)
        if isinstance(model, Llama):
            step = self._step(model, rows, ids.shape[1] + limit, device, captured)
            return self._write(model, step, ids, lengths, limit, len(prompts))
        return self._through_transformers(model, ids, lengths, limit)

    def _write(
        self, model: Llama, step: _Step, ids: Tensor, lengths: Tensor, limit: int, real: int
    ) -> list[list[int]]:
        """Read the prompts, then write a token a step."""
        token = step.read(model, ids, lengths)
        written, finished = [token], token == self.end
        for number in range(1, limit):
            if number % ASK == 0 and bool(finished[:real].all()):
                break
            token = step.write(model)
            finished = finished | (token == self.end)
            written.append(token)
        return torch.stack(written, 1)[:real].tolist()

    def _step(
        self, model: Llama, rows: int, width: int, device: torch.device, captured: bool
    ) -> _Step:
        """A cache for so many rows and columns; captured ones are kept."""
        key = (rows, -(-width // STEP) * STEP)
        if not captured:
            return _Step(model, *key, device, captured)
        if key not in self._steps:
            if len(self._steps) >= GRAPHS:
                del self._steps[next(iter(self._steps))]
            self._steps[key] = _Step(model, *key, device, captured)
        return self._steps[key]

    def _through_transformers(
        self, model: nn.Module, ids: Tensor, lengths: Tensor, limit: int
    ) -> list[list[int]]:
        assert isinstance(model, TransformersLM)
        padded, mask = pad_front(ids, lengths)
        written = model.net.generate(
            input_ids=padded,
            attention_mask=mask,
            max_new_tokens=limit,
            do_sample=False,
            num_beams=1,
            eos_token_id=self.end,
            pad_token_id=self.end,
        )
        return written[:, padded.shape[1] :].tolist()


class _Step:
    """The cache of one batch shape, and the step that writes a token into it."""

    def __init__(
        self, model: Llama, rows: int, width: int, device: torch.device, captured: bool
    ) -> None:
        config = model.config
        dtype = torch.bfloat16 if torch.is_autocast_enabled(device.type) else torch.float32
        shape = (config.layers, rows, config.kv_heads, width, config.width)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.token = torch.zeros(rows, dtype=torch.int64, device=device)
        self.position = torch.zeros(rows, dtype=torch.int64, device=device)
        self.rows = torch.arange(rows, device=device)
        self.columns = torch.arange(width, device=device)
        self.captured, self.graph, self.warm = captured, None, 0

    def read(self, model: Llama, ids: Tensor, lengths: Tensor) -> Tensor:
        """Fill the cache with the prompts; the first token of each answer [B].

        A GPU reads all of them in one pass. On a CPU padding costs as much as tokens, so it reads
        a few at a time, as wide as they need: rows are sorted by length.
        """
        size = len(ids) if ids.is_cuda else READ
        for start in range(0, len(ids), size):
            rows = slice(start, start + size)
            width = ids.shape[1] if ids.is_cuda else int(lengths[rows].max())
            self._read(model, ids[rows, :width], lengths[rows], rows)
        self.position.copy_(lengths)
        return self.token.clone()

    def _read(self, model: Llama, ids: Tensor, lengths: Tensor, rows: slice) -> None:
        def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.keys[number, rows, :, : k.shape[1]] = k.transpose(1, 2)
            self.values[number, rows, :, : v.shape[1]] = v.transpose(1, 2)
            return causal(number, q, k, v)

        hidden = model.hidden(ids, self.columns[: ids.shape[1]], attend)
        last = hidden[self.rows[: len(ids)], lengths - 1]
        self.token[rows] = model.logits(last).argmax(-1)

    def write(self, model: Llama) -> Tensor:
        """One more token of each row [B]."""
        if not self.captured:
            self._advance(model)
        elif self.graph is not None:
            self.graph.replay()
        elif self.warm < 2:
            self._advance(model)
            self.warm += 1
        else:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._advance(model)
            self.graph.replay()
        return self.token.clone()

    def _advance(self, model: Llama) -> None:
        seen = (self.columns <= self.position[:, None])[:, None, None]

        def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[number], self.values[number]
            keys[self.rows, :, self.position] = k[:, 0].to(keys.dtype)
            values[self.rows, :, self.position] = v[:, 0].to(values.dtype)
            grouped = q[:, 0].unflatten(1, (keys.shape[1], -1)).to(keys.dtype)
            out = scaled_dot_product_attention(grouped, keys, values, attn_mask=seen)
            return out.flatten(1, 2)[:, None]

        hidden = model.hidden(self.token[:, None], self.position[:, None], attend)
        self.token.copy_(model.logits(hidden[:, 0]).argmax(-1))
        self.position += 1


def _batches(order: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _until(answer: list[int], end: int) -> list[int]:
    return answer[: answer.index(end)] if end in answer else answer

r"""Questions about images: one transformer over words, object tags and regions, as in Oscar.

    h = [embed([CLS] question [SEP] tags [SEP]);  norm(W_r region + b_r)]        one sequence
    z = W_2 relu(W_1 tanh(W_p encode(h)[CLS] + b_p) + b_1) + b_2                 one score an answer

Token types are 0 for the question and 1 for the tags; words have positions, regions have none:
where a region is stands in its last six numbers (corners, width and height of its box). The norm of
regions is left out where a checkpoint of Oscar has none. (Li et al., 2020: Oscar.)

Runs alone or as a stack of P policies x S seeds, see `models/encoder/plain.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from longtail.benchmarks import MLP
from longtail_bench.encoder.plain import Encoder, Stacked

NORM = 1e-12  # epsilon of the regions' norm in Oscar
OWN = ("region", "region_norm", "pooler", "classifier")


class VisionLanguage(nn.Module):
    """Oscar on any encoder of the BERT family.

    Args:
        encoder: its token ids are those of the inputs; `encoder.config.pad` is padding.
        width: numbers of a region, box geometry included (2054 in Oscar).
        answers: how many answers there are to choose from.
        region_norm: epsilon of the regions' LayerNorm, None for none.

    Inputs are a dict: `ids` [B, T], `cut` [B] (where tags begin), `regions` [B, K, width] and
    `count` [B] (how many of the K are real).
    """

    rows_at_once = 4096  # of all members together, in evaluation

    def __init__(
        self,
        encoder: Encoder,
        width: int,
        answers: int,
        region_norm: float | None = None,
    ) -> None:
        super().__init__()
        hidden = encoder.config.hidden
        self.encoder = encoder
        self.region = nn.Linear(width, hidden)
        self.region_norm = None if region_norm is None else nn.LayerNorm(hidden, region_norm)
        self.pooler = nn.Linear(hidden, hidden)
        self.classifier = MLP(hidden, (2 * hidden,), answers)
        # Not BERT's 0.02 before the last layer: so small, these pass so little on that thousands
        # of steps read nothing off the regions. The last starts near no opinion all the same.
        for layer in (self.region, self.pooler, self.classifier[0], self.classifier[2]):
            assert isinstance(layer, nn.Linear)
            last = layer is self.classifier[2]
            nn.init.normal_(layer.weight, std=0.02 if last else layer.in_features**-0.5)
            nn.init.zeros_(layer.bias)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Scores [B, answers]."""
        lifted = {name: value[None] for name, value in inputs.items()}
        own = {name: value[None] for name, value in self._own()}
        return self._run(self.encoder.lifted(), own, lifted)[0]

    @classmethod
    def forward_stacked(
        cls, members: Sequence[VisionLanguage], inputs: dict[str, Tensor]
    ) -> Tensor:
        """Inputs [S, B, ...] to scores [P, S, B, answers]."""
        first = members[0]
        encoder = first.encoder.stacked_parameters([member.encoder for member in members])
        parts: dict[str, list[Tensor]] = {}
        for member in members:
            for name, value in member._own():
                parts.setdefault(name, []).append(value)
        own = {name: torch.cat(values) for name, values in parts.items()}
        return first._run(encoder, own, inputs).unflatten(0, encoder.lead)

    def _own(self) -> list[tuple[str, Tensor]]:
        return [(n, p) for n, p in self.named_parameters() if n.partition(".")[0] in OWN]

    def _run(self, stacked: Stacked, own: dict[str, Tensor], inputs: dict[str, Tensor]) -> Tensor:
        """Parameters with a leading R, inputs with a leading S: scores [R, B, answers]."""
        ids, count, regions = inputs["ids"], inputs["count"], inputs["regions"]
        drop = self.encoder.config.dropout if stacked.seeds is not None else 0.0
        places = torch.arange(ids.shape[-1], device=ids.device)
        types = (places >= inputs["cut"][..., None]).to(ids.dtype)
        words = self.encoder.embed(stacked, ids, types)  # [R, B, T, H]
        R, B, K = len(own["region.weight"]), ids.shape[1], regions.shape[-2]
        x = regions.to(words.dtype).expand(R // len(regions), *regions.shape).reshape(R, B * K, -1)
        seen = _linear(x, own["region.weight"], own["region.bias"])
        if self.region_norm is not None:
            seen = F.layer_norm(seen, seen.shape[-1:], eps=self.region_norm.eps)
            seen = own["region_norm.bias"][:, None] + seen * own["region_norm.weight"][:, None]
        seen = F.dropout(seen, drop).view(R, B, K, -1)
        places = torch.arange(K, device=ids.device)
        mask = torch.cat([ids != self.encoder.config.pad, places < count[..., None]], -1)
        hidden = torch.cat([words, seen.to(words.dtype)], 2)
        first = self.encoder.encode(stacked, hidden, mask, first=True).float()  # [CLS]
        with torch.autocast(ids.device.type, enabled=False):  # one vector a row: fp32 costs nothing
            pooled = torch.tanh(_linear(first, own["pooler.weight"], own["pooler.bias"]))
            pooled = F.dropout(pooled, drop)
            inner = _linear(pooled, own["classifier.0.weight"], own["classifier.0.bias"]).relu()
            return _linear(inner, own["classifier.2.weight"], own["classifier.2.bias"])


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [R, N, in], weight [R, out, in], bias [R, out]: [R, N, out]."""
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))

"""Weight gradients of all layers at once, against the definition."""

from __future__ import annotations

import pytest
import torch

from longtail_bench.encoder import gradients as encoder_gradients
from longtail_bench.encoder.gradients import Operands

R, L, N, LAST = 2, 3, 10, 4
SHAPES = {"qkv_weight": (6, 2), "out_weight": (2, 2), "up_weight": (5, 2)}


@pytest.mark.parametrize("limit", [N, N - 1])
@pytest.mark.parametrize("last", [N, LAST])
@pytest.mark.parametrize("layers", [1, L])
def test_gradients_are_dy_times_x(
    limit: int, last: int, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_gradients, "TOGETHER", limit)
    weights = {name: torch.zeros(R, layers, *shape) for name, shape in SHAPES.items()}
    operands = Operands(weights, N, last, keep=True)
    torch.manual_seed(0)
    kept = {}
    for layer in range(layers):
        for name in SHAPES:
            x = operands.x(name, layer)
            narrow = name != "qkv_weight" and layer == layers - 1
            assert x.shape == (R, last if narrow else N, SHAPES[name][1])
            kept[name, layer] = x.copy_(torch.randn(x.shape))
    operands.prepare()
    expected = {}
    for (name, layer), x in reversed(kept.items()):
        dy = operands.dy(name, layer)
        dy.copy_(torch.randn(dy.shape))
        operands.multiply(name, layer, dy, x)
        expected[name, layer] = torch.einsum("rno,rni->roi", dy, x)
    operands.finish()
    for (name, layer), value in expected.items():
        torch.testing.assert_close(operands.gradients[name][:, layer], value)


def test_operands_lie_side_by_side_only_for_a_small_batch_with_a_way_back() -> None:
    def together(rows: int, keep: bool) -> bool:
        weights = {"up_weight": torch.zeros(1, 2, 3, 1, dtype=torch.bfloat16)}
        operands = Operands(weights, rows, rows, keep)
        first, second = (operands.x("up_weight", layer) for layer in range(2))
        assert first.dtype == torch.bfloat16
        return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()

    assert together(encoder_gradients.TOGETHER, keep=True)
    assert not together(encoder_gradients.TOGETHER + 1, keep=True)
    assert not together(8, keep=False)

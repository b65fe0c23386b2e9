"""Augmentation and normalisation as layers: what they do, and that they repeat."""

import pytest
import torch
from torch import nn

from longtail.replicas import Replicas
from longtail_bench.images.inputs import Pixels, RandomCropFlip


def images(*lead: int) -> torch.Tensor:
    return torch.randint(1, 256, (*lead, 3, 8, 8), dtype=torch.uint8)


def test_pixels_are_normalised_by_channel() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    x = images(2, 4)
    wanted = (x.double() / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[
        :, None, None
    ]
    torch.testing.assert_close(Pixels(mean, std)(x), wanted.float())
    torch.testing.assert_close(Pixels()(x), x.float() / 255)


def test_floats_are_taken_as_they_are() -> None:
    x = torch.randn(2, 3, 4, 4)
    assert Pixels((0.5,) * 3, (0.5,) * 3)(x) is x


@pytest.mark.parametrize(("mean", "std"), [((0.0,), (0.0,)), ((0.0, 0.0), (1.0,))])
def test_bad_statistics_are_refused(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="Invalid mean and std"):
        Pixels(mean, std)


def crops(image: torch.Tensor, padding: int) -> list[torch.Tensor]:
    """Every shifted and mirrored version of one image."""
    padded = nn.functional.pad(image, [padding] * 4)
    size = image.shape[-1]
    found = [
        padded[:, top : top + size, left : left + size]
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
    ]
    return [*found, *(crop.flip(-1) for crop in found)]


def test_every_crop_is_one_of_the_possible_and_all_of_them_occur() -> None:
    x = images(1).expand(3000, -1, -1, -1)
    found = RandomCropFlip(seed=5, padding=1)(x)
    possible = torch.stack(crops(x[0], 1))
    which = (found[:, None] == possible).flatten(2).all(-1)
    assert (which.sum(1) == 1).all()
    share = which.float().mean(0) * len(possible)
    assert share.min() > 0.5  # 18 versions, each expected 167 times in 3000
    assert share.max() < 1.6


def test_evaluation_sees_the_image_as_it_is() -> None:
    layer, x = RandomCropFlip(seed=0).eval(), images(4)
    assert torch.equal(layer(x), x)
    assert layer.passes == 0


def test_each_pass_and_each_seed_draws_anew_and_a_snapshot_goes_on() -> None:
    x = images(16)
    layer = RandomCropFlip(seed=1)
    first = layer(x)
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    second = layer(x)
    assert not torch.equal(first, second)
    assert not torch.equal(first, RandomCropFlip(seed=2)(x))
    resumed = RandomCropFlip(seed=0)
    resumed.load_state_dict(state)
    assert torch.equal(resumed(x), second)


class Opaque(nn.Module):
    """Hides a chain of layers, so that replicas of it go through vmap."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize("wrap", [nn.Sequential, Opaque])
def test_a_replica_draws_what_the_single_model_draws(wrap: type[nn.Module]) -> None:
    models = [
        wrap(nn.Sequential(RandomCropFlip(s), Pixels(), nn.Flatten(), nn.Linear(192, 2)))
        for s in (3, 4, 5)
    ]
    stack = Replicas(models, policies=2)
    x = images(3, 7)
    for _ in range(2):
        found = stack(x)
        for s, model in enumerate(models):
            expected = model(x[s])
            for p in range(2):
                torch.testing.assert_close(found[p, s], expected)

"""ResNet-18 in its CIFAR form."""

import torch

from longtail.replicas import Replicas
from longtail_bench.images.resnet import ResNet18


def test_it_has_the_published_size() -> None:
    assert sum(p.numel() for p in ResNet18(10).parameters()) == 11_173_962
    assert sum(p.numel() for p in ResNet18(100).parameters()) == 11_220_132


def test_the_stem_keeps_the_image_and_three_stages_halve_it() -> None:
    model = ResNet18(5, channels=1, width=8)
    sizes: list[int] = []
    for part in (model.conv1, *model.stages):
        part.register_forward_hook(lambda module, args, out: sizes.append(out.shape[-1]))
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 5)
    assert sizes == [32, 32, 16, 8, 4]


def test_replicas_compute_what_single_models_do() -> None:
    models = [ResNet18(3, width=8) for _ in range(2)]
    stack = Replicas(models, policies=2)
    x = torch.randn(2, 6, 3, 8, 8)
    found = stack(x)
    for s, model in enumerate(models):
        expected = model(x[s])
        for p in range(2):
            torch.testing.assert_close(found[p, s], expected, rtol=1e-4, atol=1e-5)
            alone = stack.replica(p, s)
            for name, value in model.named_buffers():  # batch statistics move in the stack too
                torch.testing.assert_close(alone.get_buffer(name), value, rtol=1e-4, atol=1e-5)


def test_weights_on_a_cpu_are_not_laid_out_as_on_a_gpu() -> None:
    """With channels last a layer of four channels waited for ever, see the module's docstring."""
    model = ResNet18(3, width=4).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    assert all(p.is_contiguous() for p in model.parameters())

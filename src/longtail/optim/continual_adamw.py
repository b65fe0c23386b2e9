"""Continual Adam with decoupled weight decay."""

from torch import Tensor
from torch.optim.optimizer import ParamsT

from longtail.names import FirstMoment, PastDtype, SecondMoment
from longtail.optim.continual_adam import ContinualAdam


class ContinualAdamW(ContinualAdam):
    r"""Continual Adam with decoupled weight decay: :class:`torch.optim.AdamW` that forgets less.

    Like :class:`ContinualAdam`, but ``weight_decay`` shrinks the parameters instead of joining
    the gradient:

    .. math::
        \theta = (1 - \gamma \lambda) \theta - (1 - \beta_3^t) \gamma \hat m / (\sqrt{v'} +
        \epsilon)

    Args:
        params: parameters, named parameters or parameter groups, as for any torch optimizer.
        lr: learning rate, as for :class:`ContinualAdam`.
        betas: decay of the first and second moment within a task.
        eps: added to the denominator.
        weight_decay: decoupled decay :math:`\lambda`; each step multiplies by
            ``1 - lr * weight_decay``.

    ``beta3``, ``first_moment``, ``second_moment``, ``past_dtype``, ``foreach``, ``maximize``,
    ``capturable``, ``differentiable`` and ``fused`` are as for :class:`ContinualAdam`.

    Example:
        >>> import torch
        >>> from longtail import ContinualAdamW
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = ContinualAdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        >>> for inputs in (torch.randn(8, 3), torch.randn(20, 3)):
        ...     for x in inputs:
        ...         opt.zero_grad()
        ...         model(x).square().sum().backward()
        ...         opt.step()
        ...     opt.end_task()
        >>> opt.param_groups[0]["tasks_seen"]
        tensor(2)

    Deviations from the paper:
        Algorithm 1 subtracts :math:`\lambda \theta`; here it is :math:`\gamma \lambda \theta`, as
        in torch, so that settings carry over. The rest as for :class:`ContinualAdam`.

    References:
        Continual Learning of Numerous Tasks from Long-tail Distributions,
        https://arxiv.org/abs/2404.02754

        Decoupled Weight Decay Regularization, https://arxiv.org/abs/1711.05101
    """

    _decoupled_weight_decay = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        beta3: float = 0.9,
        first_moment: FirstMoment = "reset",
        second_moment: SecondMoment = "task",
        past_dtype: PastDtype = "float32",
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            beta3=beta3,
            first_moment=first_moment,
            second_moment=second_moment,
            past_dtype=past_dtype,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )

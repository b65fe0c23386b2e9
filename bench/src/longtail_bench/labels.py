"""What tables call the methods of this package."""

METHODS = {
    "ewc_adam": "EWC, Adam's v",
    "ewc_routed": "EWC, routed",
    "agem_routed": "A-GEM, routed",
    "cofima": "CoFiMA",
    "reservoir_l2": "Reservoir + L2",
    "reservoir_ewc_adam": "Reservoir + EWC, Adam's v",
    "reservoir_coma": "Reservoir + CoMA",
    "reservoir_cofima": "Reservoir + CoFiMA",
}

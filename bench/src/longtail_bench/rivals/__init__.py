"""Optimizers and methods that Continual Adam is compared with, one file each."""

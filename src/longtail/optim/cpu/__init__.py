"""The compiled step of Continual Adam on a CPU."""

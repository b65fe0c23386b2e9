"""The step of Continual Adam on CUDA, in Triton: `longtail.optim.cuda.step` is the way in."""

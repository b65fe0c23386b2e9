"""The step of Continual Adam on CUDA, in Triton: `longtail.optim.cuda.launch` is the way in."""

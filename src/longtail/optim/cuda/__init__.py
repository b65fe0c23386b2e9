"""Parts of the fused step on CUDA; `longtail.optim.cuda.step` is the way in."""

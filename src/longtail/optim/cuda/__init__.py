"""Parts of the fused step on CUDA; `longtail.optim.fused_cuda` is the way in."""

"""A BERT-like encoder that several benchmarks share: plain, stacked and as fused kernels."""

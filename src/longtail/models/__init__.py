"""The networks that the benchmarks need, one file each; nothing is imported before it is used."""

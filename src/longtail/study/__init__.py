"""Studies: a file of settings becomes runs, and these are executed here or on a Ray cluster."""

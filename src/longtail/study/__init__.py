"""Studies: a file of settings becomes runs, and these are trained here or on a Ray cluster.

`file` reads a study file, `expand` gives the runs it stands for, `jobs` groups those that are not
finished and trains one group, `local` and `ray_engine` train all of them, `display` shows how far
they are, `command` is the whole way from the file to the report.
"""

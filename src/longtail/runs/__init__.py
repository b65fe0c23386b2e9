"""A run, from its settings to its folder: what is trained, what is written, how it resumes.

`config` resolves settings, `build` makes a run or a stack of runs from them, `session` trains it,
`files` knows every name in a run's folder, `snapshot` keeps the last consistent state.
"""

"""A run, from its settings to its folder: what is trained, what is written, how it resumes.

`config` resolves settings, `build` makes a run or a stack of runs from them, `session` trains it in
its folder, `files` knows every file there, `snapshot` keeps the last consistent state, `summary`
says what was measured, `progress` and `loggers` show how it goes.
"""

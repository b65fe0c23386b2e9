"""One module per command of the command line: ``add_arguments(parser)`` and ``main(args)``."""

"""`python -m longtail.cli`."""

from longtail.cli.entry import main

raise SystemExit(main())

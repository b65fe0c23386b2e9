"""`python -m longtail`."""

from longtail.cli import main

raise SystemExit(main())

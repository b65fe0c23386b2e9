"""The files of the studies: `longtail study NAME` finds them here."""

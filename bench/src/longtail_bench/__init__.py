"""What longtail's paper and its authors measured; longtail finds it by entry points."""

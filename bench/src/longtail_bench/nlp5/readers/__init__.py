"""Readers of the five NLP tasks' files, one file each, in their publishers' form."""

"""GQA's files in the form their publishers ship them, read into tables."""

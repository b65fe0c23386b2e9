"""A generated world of scenes and questions in GQA's form, which needs no files."""

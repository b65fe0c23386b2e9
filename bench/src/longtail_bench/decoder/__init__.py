"""Causal language models that answer the five NLP tasks' questions."""

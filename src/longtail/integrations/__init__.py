"""Continual Adam inside other people's training loops.

Each module needs the framework it is named after and is imported by whoever uses it:
`longtail.integrations.hf`, `.lightning`, `.peft`, `.avalanche`.
"""

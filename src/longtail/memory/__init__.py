"""What Continual Adam knows, as a file beside the weights, by parameter name."""

from longtail.memory.file import MemoryReport, load_memory, save_memory
from longtail.memory.prime import prime

__all__ = ["MemoryReport", "load_memory", "prime", "save_memory"]

"""The tables of the paper, arXiv 2404.02754, as it prints them."""

import json
from importlib import resources

_FILE = resources.files("longtail_bench.claims").joinpath("paper_tables.json")
TABLES = json.loads(_FILE.read_text("utf-8"))

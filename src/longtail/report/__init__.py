"""From a folder of runs to tables, figures and a page. Nothing here imports torch."""

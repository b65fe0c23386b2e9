"""The paper's claims as checks of a table's rows, one file a benchmark."""

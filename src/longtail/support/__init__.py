"""What every room may use: random numbers, files, downloads, the machine, signals."""

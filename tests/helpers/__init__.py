"""What several test files share: made-up files, runs, optimizers."""

"""Signals: causal feature columns, their files, and the split of time into train, validation and test with an embargo."""

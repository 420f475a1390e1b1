"""Signals: causal feature columns, their files, and the split of time with an embargo."""

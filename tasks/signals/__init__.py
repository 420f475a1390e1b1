"""Signals: causal feature columns, their files, and time splits with an embargo."""

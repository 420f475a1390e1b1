"""Atomic files, locks, records with a digest, and URLs without credentials."""

"""Contracts between the stages: stored rows (pandera), records and options (pydantic), names and errors."""

__version__ = "0.1.0"
"""Version of the project, set here because a copy of the source has no installed package metadata."""

"""Contracts between the stages: frames (pandera), configuration (pydantic), names and errors."""

__version__ = "0.1.0"
"""The version of the project: read here, since a copy of the source has no installed metadata."""

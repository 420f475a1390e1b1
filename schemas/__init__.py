"""Contracts between the stages: frames (pandera), configuration (pydantic), names and errors."""

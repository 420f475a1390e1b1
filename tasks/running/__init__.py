"""Runs steps: step definition, parallel calls in threads, resident processes, and progress reports."""

"""Runs steps: step definition, parallel calls in threads, cores, resident processes, and progress reports."""

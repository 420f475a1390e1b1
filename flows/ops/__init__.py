"""Servers of cpb: `serve` runs an application in the current process, `guard` checks every request before it."""

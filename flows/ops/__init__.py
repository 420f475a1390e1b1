"""Servers of cpb: `serve` runs an application in the current process, `guard` checks every request before it.

`ports` keeps a server's port from others, `logs` bounds what it writes.
"""

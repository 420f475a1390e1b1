"""Devices: what hardware is present, what keeps it from being used, and how much of it a training uses.

monitor.py  memory, utilisation and power while something runs, without a device sync; where a training step ran
steps.py    one training step of any architecture, to be called and timed
doctor.py   facts of the machine, one training step of every architecture, problems with their remedies
"""

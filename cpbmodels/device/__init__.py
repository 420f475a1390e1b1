"""Devices: what hardware is present, what keeps it from being used, and how much of it a training uses.

monitor.py  memory, utilisation and power while something runs, without a device sync; operators that left a GPU
builds.py   which build of torch a driver and a chip need, and the command that installs it
steps.py    one training step and one validation of any architecture, to be called and timed
pace.py     a fleet's step as it runs on this device, and how long a whole training takes at that pace
doctor.py   facts of the machine, one training step of every architecture, problems with their remedies
"""

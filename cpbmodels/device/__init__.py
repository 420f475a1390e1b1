"""Devices: what hardware is present, and what it does while something runs on it.

chips.py      GPUs and driver as the system knows them
monitor.py    memory, utilisation and power beside a training, without a device sync
operators.py  where a training step ran: kernels of a GPU, operators that left it
"""

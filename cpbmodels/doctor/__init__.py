"""`cpb doctor`: what keeps a device from being used, how fast it trains, and the remedies.

builds.py    which build of torch a driver and a chip need, and the command that installs it
findings.py  what the machine has, and the problems of its driver, torch and memory
pace.py      a fleet's step as it runs on this device, and how long a whole training takes at that pace
examine.py   all of it together, with one training step of every architecture
report.py    the same as lines for people
"""

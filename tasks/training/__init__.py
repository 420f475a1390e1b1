"""Training: the plan of a fleet, the process that trains it, the device slots, and its files."""

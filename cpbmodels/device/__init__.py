"""Facts about devices: what hardware is present, how fast it is, and how much of it a training uses.

monitor.py    memory, utilisation and power while something runs, without a device sync; without NVML no GPU counters
host.py       driver, GPU and CPU facts that need no working CUDA
probe.py      measured rates: matmul, copy, launch latency, beside the data sheets
placement.py  on which device a training step ran: kernels, operators that gave CPU tensors
steps.py      one training step of every architecture: placement, time, memory
doctor.py     all of these: facts, problems with their remedies, the profile for this device
report.py     the same as text
"""

from cpbmodels.device.monitor import Monitor, check_placement

__all__ = ["Monitor", "check_placement"]

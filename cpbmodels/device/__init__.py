"""Facts about devices: what is there, what it delivers, and how much of it a training uses.

monitor.py    memory, utilisation and power while something runs, without a device sync
nvml.py       NVIDIA's management library, opened lazily; where it is absent, GPU counters are left out
chips.py      data sheets: matmul rates and bandwidth per chip
host.py       driver, GPU and CPU facts that need no working CUDA
probe.py      measured rates: matmul, copy, launch latency
placement.py  on which device a training step ran: kernels, operators that gave CPU tensors
steps.py      one training step of every architecture: placement, time, memory
findings.py   problems of GPU, driver, torch build and memory, with remedies
doctor.py     all of it together: facts, problems, the profile for this device
report.py     the same as text
"""

from cpbmodels.device.monitor import Monitor, check_placement

__all__ = ["Monitor", "check_placement"]

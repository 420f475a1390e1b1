"""Device truth: what a device is, what it delivers, and what a training really used of it.

monitor.py   memory, utilisation and power while something runs, without a device sync
nvml.py      NVIDIA's management library, opened lazily; absent is an answer, not an error
chips.py     what the makers promise: matmul rates and bandwidth per chip
host.py      driver, GPU and CPU facts that need no working CUDA
probe.py     measured rates: matmul, copy, launch latency, recurrent kernels
steps.py     one training step of every architecture: placement, time, memory
doctor.py    puts it together: findings, remedies, the profile for this device
"""

from cpbmodels.device.monitor import Monitor, check_placement

__all__ = ["Monitor", "check_placement"]

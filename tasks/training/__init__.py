"""Training: the plan of a fleet's shards, and the processes that train them.

A shard passes `plan` (its job), `queue` (its turn), the engine `local` or `ray`, `trainers` (a process per device; time
limits, deaths), and in that process `trainer` (requests, the GPU's lock) and `shard_training`.
"""

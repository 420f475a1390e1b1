"""One fleet's training as a job on disk: what to train, the process that does it, and who starts that."""

"""What enters the engine's process: the standard library and batchscope.schemas, nothing else."""

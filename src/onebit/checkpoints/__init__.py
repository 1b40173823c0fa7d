"""Model files, tensor by tensor: merging adapters into them and comparing them, one tensor in memory at a time."""

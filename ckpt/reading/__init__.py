"""Read checkpoints: all of one, some tensors, one slice, its faults or a summary."""

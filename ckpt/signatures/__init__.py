"""Who vouches for a checkpoint or a delta: keys, the statements that they sign, and whom to trust."""

"""Mend a checkpoint from a good copy."""

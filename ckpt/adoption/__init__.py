"""Safetensors files that others wrote become checkpoints where they lie."""

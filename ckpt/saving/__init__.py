"""Write checkpoints: at once, in the background, and one after the other in the folder of a run."""

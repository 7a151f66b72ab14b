"""What others wrote becomes a checkpoint: ``converting`` is the call, the rest reads foreign formats in a child.

``child`` is that process, with limits; ``torch_file``, ``npz`` and ``dcp`` read one kind each and write the checkpoint;
``lazily`` writes tensors that are read one at a time, ``archive`` holds zip files to their sizes. Nothing but
``converting`` is imported by the rest of the package: pickles are read in the child alone.
"""

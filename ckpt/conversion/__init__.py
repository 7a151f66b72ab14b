"""What reads foreign formats for :func:`ckpt.convert`, in a child process with limits.

``child`` is that process; ``torch_file``, ``npz`` and ``dcp`` read one kind each and write the checkpoint; ``lazily``
writes tensors that are read one at a time, ``archive`` holds zip files to their sizes. Nothing here is imported by the
rest of the package: pickles are read in the child alone.
"""

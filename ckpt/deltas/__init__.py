"""What turns one checkpoint into another: found, written, read, applied, turned round, put together.

``delta`` is a delta as a value, ``wire`` its bytes, ``patches`` its opened folder; ``writer`` makes one of two
checkpoints (``sides``), in which ``moves`` finds what moved, ``reader`` applies it. ``made`` is a target that is never
written: ``inverting`` and ``squashing`` make deltas of deltas with it, ``lineage`` and ``composing`` without any base.
``codecs`` turn bytes of the base into bytes of the target, one module for each.
"""

"""What turns one checkpoint into another: found, written, read, applied.

``delta`` is a delta as a value, ``wire`` its bytes, ``writer`` makes one of two checkpoints, ``reader`` applies it;
``codecs`` turn bytes of the base into bytes of the target, one module for each.
"""

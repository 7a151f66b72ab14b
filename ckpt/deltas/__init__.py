"""What turns one checkpoint into another: found, written, read, applied.

``delta`` is a delta as a value, ``wire`` its bytes, ``patches`` its opened folder; ``writer`` makes one of two
checkpoints (``sides``), ``reader`` applies it; ``codecs`` turn bytes of the base into bytes of
the target, one module for each.
"""

"""A delta applied in the memory that a model computes with, without files.

``memory`` finds the storages of a checkpoint in live tensors, ``writes`` are absolute values in their places,
``staging`` makes them of a delta and proves both sides, ``patch`` applies and undoes them, ``record`` keeps them for
whoever comes after a kill (docs/decisions/0015-live-patches.md).
"""

"""The cases: for each part of the pipeline what we do and what people would do without us, as calls to be measured.

A module for each part; ``prepare`` is run once for a stage, the others are sides. A case prepares, yields one ``Call``
and cleans up; see ``benchmarks.plan``. Modules are imported by the measuring process alone, so that each costs only
what its own sides need.
"""

__all__: list[str] = []

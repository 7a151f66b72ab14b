"""Every variant of every family."""

from typing import Final

from tests.compiler.families.attention import attention
from tests.compiler.families.case import Case
from tests.compiler.families.constants import constants
from tests.compiler.families.norms import norms
from tests.compiler.families.projections import projections

_ALL = (*norms(), *attention(), *projections(), *constants())
ALL: Final[tuple[Case, ...]] = tuple({case.name: case for case in _ALL}.values())
CASES: Final[tuple[Case, ...]] = tuple(case for case in ALL if not case.soaked)

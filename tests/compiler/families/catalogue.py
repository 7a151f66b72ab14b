"""Every variant of every family."""

from typing import Final

from tests.compiler.families.attention import attention
from tests.compiler.families.case import Case
from tests.compiler.families.constants import constants
from tests.compiler.families.norms import norms
from tests.compiler.families.projections import projections

_ALL = (*norms(), *attention(), *projections(), *constants())
CASES: Final[tuple[Case, ...]] = tuple({case.name: case for case in _ALL}.values())

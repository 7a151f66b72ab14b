"""What can be wrong with a recipe, as one tree.

RecipeError
├── UnknownRecipeError   (LookupError)  no module of that name
├── InvalidRecipeError   (TypeError)    the module lacks a member, or one is not what the contract says
├── UnknownPlanError     (LookupError)  the recipe has no training plan of that name
└── NotFiniteError       (ArithmeticError)  a loss in training, or an answer that is judged, is NaN or infinite
"""

from collections.abc import Iterable


class RecipeError(Exception):
    """Anything that keeps a recipe from being used."""


class UnknownRecipeError(RecipeError, LookupError):
    """No module of that name can be imported."""

    def __init__(self, name: str, *, known: Iterable[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(
            f"no recipe '{name}': expected the name of an importable module; shipped are {', '.join(self.known)}, "
            "and a module of your own must be on PYTHONPATH"
        )


class InvalidRecipeError(RecipeError, TypeError):
    """A member is missing or of the wrong kind."""

    def __init__(self, recipe: str, *, member: str, found: str, expected: str) -> None:
        self.recipe, self.member, self.found, self.expected = recipe, member, found, expected
        super().__init__(
            f"recipe '{recipe}': {member} is {found}, expected {expected}; recipes/contract.py lists what a recipe has"
        )


class UnknownPlanError(RecipeError, LookupError):
    """The recipe has no such training plan."""

    def __init__(self, plan: str, *, recipe: str, known: Iterable[str]) -> None:
        self.plan, self.recipe, self.known = plan, recipe, tuple(known)
        super().__init__(f"recipe '{recipe}' has no training plan '{plan}': it has {', '.join(self.known)}")


class NotFiniteError(RecipeError, ArithmeticError):
    """A loss or an answer is NaN or infinite: nothing that comes after it can be right."""

    def __init__(self, recipe: str, *, where: str, found: str, advice: str) -> None:
        self.recipe, self.where, self.found = recipe, where, found
        super().__init__(f"recipe '{recipe}': {where} is {found}, expected finite numbers; {advice}")

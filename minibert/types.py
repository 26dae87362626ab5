"""Numbers with a range, as config fields name them: the command line checks the range, mypy sees a number."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    PositiveInt = int
    NonNegativeInt = int
    PositiveFloat = float
    NonNegativeFloat = float
    UnitInterval = float
else:
    from jsonargparse.typing import ClosedUnitInterval as UnitInterval
    from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

__all__ = ["NonNegativeFloat", "NonNegativeInt", "PositiveFloat", "PositiveInt", "UnitInterval"]

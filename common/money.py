"""How an amount of money is written."""

import math
from decimal import Decimal


def money(value: float | Decimal) -> str:
    """An amount without its currency, with two digits that say something, six at most."""
    amount = float(value)
    digits = 2 if abs(amount) >= 1 or not amount else 1 - math.floor(math.log10(abs(amount)))
    return f"{amount:,.{min(6, digits)}f}"

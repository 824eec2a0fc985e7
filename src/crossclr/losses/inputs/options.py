"""Checks of a loss's options; every error names the option."""

import math
import numbers

LARGEST = 1e6  # limit of options without a natural bound; larger values overflow float32
LARGEST_QUEUE = 10_000_000  # rows; with 384 channels these take 15 GB


def check_number(name: str, value: object, low: float, high: float = LARGEST, above: bool = False) -> float:
    """A number within [low, high], or within (low, high] if ``above`` is set."""
    truth = isinstance(value, bool)  # bool is a subclass of int
    if isinstance(value, numbers.Real) and not truth:
        try:
            number = float(value)
        except OverflowError:  # 10**400
            number = math.inf
        if low <= number <= high and not (above and number == low):
            return number
    least = "above" if above else "at least"
    raise ValueError(f"{name} must be a number {least} {low:g} and at most {high:g}, got {_shown(value)}")


def check_temperature(value: object) -> float:
    """A temperature: logits of 1 / temperature must fit into float32."""
    return check_number("temperature", value, 1e-5)


def check_count(name: str, value: object, low: int, high: int | None = None) -> int:
    """A whole number within [low, high]."""
    truth = isinstance(value, bool)
    if isinstance(value, numbers.Integral) and not truth:
        number = int(value)
        if low <= number and (high is None or number <= high):
            return number
    most = "" if high is None else f" and at most {high:,}"
    raise ValueError(f"{name} must be a whole number of at least {low}{most}, got {_shown(value)}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {_shown(value)}")
    return value


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**12:
        return f"a whole number of {math.floor(math.log10(abs(value))) + 1} digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

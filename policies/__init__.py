"""What picks instances: the policies, and the registry that finds them by name."""

from .policy import Choice, Parameters, Policy
from .registry import describe, make, names, parse, register

__all__ = ["Choice", "Parameters", "Policy", "describe", "make", "names", "parse", "register"]

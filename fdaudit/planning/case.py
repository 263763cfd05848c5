"""The name under which the attack stage knows a plan, of a simulation or of a recording."""

from fdaudit.planning.plan import Plan as Case

__all__ = ["Case"]

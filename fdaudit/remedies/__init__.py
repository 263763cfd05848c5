"""Remedies that are tried: the same federation with a defence, its settings tuned, attacked again.

`trials` has the remedies as changes of a spec, `tuning` chooses settings on auxiliary records, `rerun` runs a changed
spec on a run's records, and `perform` runs the remedies.
"""

from fdaudit.remedies.perform import EPSILON, try_remedies

__all__ = ["EPSILON", "try_remedies"]

"""The honest twin of a deviating run: what the deviation gained, what it cost, and whether it could be noticed.

`perform` runs the twin, `gains` sets the findings of both side by side, `detectors` has what receivers could compute,
and `notice` counts their alarms.
"""

from fdaudit.twin.perform import make_twin, refuse_honest

__all__ = ["make_twin", "refuse_honest"]

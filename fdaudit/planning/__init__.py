"""From a spec to a resolved plan and its run directory."""

"""Reports: a finished run's results as pages a person can act on."""

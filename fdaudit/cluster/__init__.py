"""Ray: imported only where it is asked for."""

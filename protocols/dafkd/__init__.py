"""DaFKD."""

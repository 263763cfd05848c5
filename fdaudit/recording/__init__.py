"""Recordings: federations that another system ran, recorded in fdaudit's format."""

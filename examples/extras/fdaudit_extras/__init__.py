"""A protocol, an attack and a defence that fdaudit finds by entry points: see docs/extending.md."""

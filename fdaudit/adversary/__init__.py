"""The adversary: its view, its knowledge and its oracle."""

"""The curves of a sweep: rows, figures, words and the page."""

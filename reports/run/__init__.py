"""The report of one run: its front page, sections and appendix, and the same as JSON."""

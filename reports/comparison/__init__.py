"""Several runs side by side: the page, its tables and its charts."""

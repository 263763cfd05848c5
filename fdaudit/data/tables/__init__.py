"""Tables: rows of numbers and categories with one class each."""

"""The command line's commands; no other package imports them."""

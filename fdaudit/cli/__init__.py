"""Commands; nothing imports them."""

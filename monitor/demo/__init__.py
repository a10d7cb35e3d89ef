"""``monitor demo``: the founding text's three observations as live traffic on a real broker."""

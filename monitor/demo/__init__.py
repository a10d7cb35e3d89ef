"""``monitor demo``: three things that happened in a real pipeline, as live traffic on a real broker."""

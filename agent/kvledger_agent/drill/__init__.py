"""`kvledger drill URL`: clients that cancel, lose patience and reconnect; whether the pool comes back, and how fast."""

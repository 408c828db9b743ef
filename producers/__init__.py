"""What sends reports: the client that products embed, simulated users, replayed logs."""

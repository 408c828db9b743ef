"""Everything is killed, frozen and restarted on a seeded schedule; then the auditor comes."""

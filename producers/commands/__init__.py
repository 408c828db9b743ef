"""Commands that play users: the service never imports them, the command line finds them by path."""

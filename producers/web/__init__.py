"""The browser client, one ES module; Python only finds its files."""

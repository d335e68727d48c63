"""The load generator: offers a schedule to a server, whatever the server does, and measures it."""

"""The local loop, its losses, the Adam of the server, and what training costs."""

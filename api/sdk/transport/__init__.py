"""How calls reach a service: connections, retries, streams of events, blocking and awaited."""

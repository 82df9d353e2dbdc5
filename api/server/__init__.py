"""The service: the web application, its routes, its security and its logs."""

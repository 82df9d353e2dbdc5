"""The service: web application, routes, security and logs."""

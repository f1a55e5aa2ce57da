"""HTTP: routes, request and response documents, problems and server-sent events."""

"""Parts shared by all families: alignment, aligned copies, kernel parameters, fit files, a quick TIRx tracer."""

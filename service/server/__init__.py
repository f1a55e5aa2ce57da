"""The server process: the FastAPI application put together, and what runs it on a data folder."""

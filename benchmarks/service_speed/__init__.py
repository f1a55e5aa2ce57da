"""Speed of the service: known kernels answered over HTTP beside a bare FastAPI route of the same process."""

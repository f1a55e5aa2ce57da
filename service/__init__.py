"""HTTP service: the API, its pages, the workers that tune, and the command line of all of it."""

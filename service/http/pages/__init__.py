"""Routes of the pages: what the service has and does, for people; each is JSON too, at the same address."""

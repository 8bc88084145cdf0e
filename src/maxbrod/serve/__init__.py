"""A dashboard of archives in a browser: it observes, and changes nothing."""

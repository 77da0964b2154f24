"""One gradient beside that of other libraries, each used as it documents."""

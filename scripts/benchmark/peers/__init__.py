"""Compare one gradient with other libraries, each used as its documentation says."""

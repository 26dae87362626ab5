"""What a person got wrong, told apart from what we got wrong."""


class UserError(ValueError):
    """A mistake in the input: a file, a row, an option. One sentence: what was given, where, and what was expected.

    Scripts print it as a single line and exit with code 2; a library user may catch it as a `ValueError`.
    Everything else that is raised is a bug of ours and keeps its traceback.
    """

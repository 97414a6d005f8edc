"""The one kind of error a person may see."""


class RequestError(Exception):
    """What was asked for cannot be done. The message is one plain sentence that names the thing and the way out.

    Pages show the message, the command line prints it and exits with status 2. Nothing else of it is shown, so it
    must not hold secrets (a hub token) or a traceback.
    """

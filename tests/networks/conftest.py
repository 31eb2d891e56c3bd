"""What of the zoo is collected."""

#: without doctests, and not to be imported before a test needs them: some import timm or transformers
collect_ignore_glob = ["zoo*.py", "third_party.py"]

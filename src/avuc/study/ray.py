"""The Ray engine."""


def run(*a):
    raise NotImplementedError

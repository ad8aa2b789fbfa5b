"""A stand-in for torchvision, which has no release for the torch of the tests.

`datasets.folder` has the functions, signatures, order and errors of torchvision 0.15 to 0.24 as far as an `ImageFolder`
uses them: what a script sees of its files, and what Flatout replaces.
"""

"""Reads of a training's files from a pack: the script opens the files of its data set, and gets their packed bytes.

lookup         where the content of a file is in the shards of a pack
reads          Python's `open`, and torchvision's reader of files
image_folder   the files and classes of torchvision's `ImageFolder`, without a walk through the folder
"""

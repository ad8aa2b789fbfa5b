"""Pack a data set of many small files into WebDataset shards that can be read in any order.

sources       a folder or table -> the samples of the data set, in the order in which a script sees them
image_folder, tables    the readers of one kind of source
plan          samples and options -> which shard holds which sample
shard         write one shard, verify it, and return where each sample is; runs on any worker
resize        make images smaller that are much larger than the crop
engines       run the shards on processes of this machine, on Ray Data or on Dask
pack          all of it: the lock, resuming, the index
index         read a pack's index, and write the files that other tools and `flatout run --packed` read
verify        read a finished pack again
gain          what packing will bring for these files on this file system
reading       the lines of a program that reads a pack
"""

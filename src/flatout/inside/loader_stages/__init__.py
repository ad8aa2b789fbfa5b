"""How long each stage of making a batch takes in the processes that make it: open, read, decode, transform, collate.

stopwatch   exclusive times of nested stages, on the thread that makes a batch
budget      which batches are timed, so that timing takes about one per cent of the time at most
files       files whose reads are timed
hooked      which functions of which libraries belong to which stage
mounts_read which file systems the samples are read from
shards      how many files the workers of an iterable data set divide among themselves
thread_counters  what the kernel counts for the thread that makes batches
stacks      where the data set's own code spends its time, by samples of its stack
device_copies  how long copies of batches to a GPU take there
batch_watch the stages of each batch of this process, and the file of its report
"""

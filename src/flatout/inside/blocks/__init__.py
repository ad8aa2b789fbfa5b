"""Changes that are switched on and off while the job trains, in alternating blocks of steps.

In: FLATOUT_BLOCKS, a JSON schedule of arms (sets of settings) and their order. Out: all ranks switch at the same steps,
and each block is an event in the step file. Only settings that can be taken back are switched; one that does not fit
leaves its arm as the baseline, and the event says so. Nothing is judged here: `trial.blocks` reads the recording.

    schedule        the arms and the order, and the plan of steps that all ranks follow
    block_run       the blocks of one rank: switch, wait for the GPU, note the block
    dropped         arms that are clearly slower and get no more blocks
    device_times    what steps take on a GPU
    arms            the settings of one arm, and the module of each setting
    switcher        one setting that can be switched
    process         threads, binding to cores, the garbage collector
    kernels         TF32
    gated           patches that check at each call whether they are on: autocast, copies, `no_sync`
    reducer         bucket sizes and hooks of DistributedDataParallel, by a new reducer
    loaders         workers, prefetching and pinned memory of DataLoaders, by an iterator that takes over
"""

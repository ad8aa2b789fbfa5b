"""Copy a data set to a disk of this node ahead of a job: `stage` copies, `emit.staging` writes what runs it there."""

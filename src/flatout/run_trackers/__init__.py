"""Results of Flatout next to the curves of a run, in MLflow, Weights & Biases or TensorBoard.

    values       a result -> numbers, tags and a text under documented names
    stores       these values -> a run of MLflow, an offline run of Weights & Biases, or a folder of TensorBoard

A tracker's library is imported only where its store is asked for; without it the error names the package to install.
"""

"""NCCL by message size: tables of measured choices, the plugin that applies them, and the log that proves it.

    table_file      a table as a text, read and written
    plugin/         the tuner plugin for NCCL, in C, which reads that text
    build           the plugin, built by the user's compiler
    vendor_tuners   tuners of others that the plugin would displace
    settings        the variables that apply a table or other settings, each checked
    nccl_log        the settings that took effect, from NCCL's log
    candidates      what to measure for a transport
    work            which groups and sizes a job uses
    plan, measure   the ranks that measure, in which order, and what each took
    choose          measured times -> the rows of a table

`flatout tune nccl` (`nccl_tuner.command`) calls them in this order.
"""

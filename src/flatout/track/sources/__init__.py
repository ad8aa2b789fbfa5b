"""One file for each kind of result: the measures, the job, the machine and the environment that its JSON has.

A source is a function from the decoded JSON to a `ResultFacts`. A value that is missing or null gives no measure.
"""

"""How a job makes its batches: the reports of the processes that make them -> stages, causes, and predicted speeds.

read_reports   the files of a recording that `inside/loader_stages` wrote
stages         the stages of each rank's samples
rates          what the training and the loader do alone
speed          what another number of workers would deliver
causes         why the training waits
profile        all of it, for one recording
"""

from __future__ import annotations

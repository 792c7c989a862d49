"""Callbacks for training frameworks, each a thin layer over ``moira.job.Job`` that does nothing outside Moira.

They report how training goes, save when a stop is announced, and leave when it comes. The batch stays as the
framework's own settings say: choosing it while training runs is for loops of one's own, with ``moira.init``.
"""

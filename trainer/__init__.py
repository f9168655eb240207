"""Training: joined triplets in, a better model version out.

``window`` and ``batch`` decide what a step trains, ``verl_backend`` trains it, ``checkpoint`` and ``weights``
make it durable, ``learner`` ties them to the log, ``server`` serves the newest version. Only the modules that
need torch import it, so a command line that asks about windows or manifests starts at once.
"""

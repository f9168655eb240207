"""`agl-stream demo`: the whole system on this machine, training a small tool-using agent, watched and judged.

`plan` says what is run, `run` runs it, `progress` adds up what the log says, `view` shows it, `verdict` judges it.
Everything the demo knows it reads from the topics and the state store, as any other program could.
"""

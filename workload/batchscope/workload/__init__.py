"""Real traffic for engines: public traces read, or drawn from laws, and offered open loop.

`read` reads a trace file, `presets` draw one, `shape` fits it to an engine, `driver` offers it at
its own pace, `prompts` gives it token ids, `describe` says what is in it.
"""

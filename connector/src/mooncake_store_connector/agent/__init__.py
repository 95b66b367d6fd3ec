"""The store agent: a process beside each engine that holds the store's client, so that no engine thread ever waits.

The engine's scheduler and workers speak with it over a local socket and share memory with it (`arena`). It looks
prompts up (`search`), brings their blocks into host memory and proves them (`loading`), and stores what workers hand
over (`saving`). A store that is late, gone or hung is its matter alone (`link`). The engine's processes import no
Mooncake; an agent that dies costs shared KV until its successor is there, and nothing else.
"""

"""An OpenAI-compatible server for one bundle, and a web page to chat with it.

    request ──schemas──▶ ids, options ──engine──▶ pieces ──replies──▶ JSON or server-sent events

`engine` shares the model among requests, `app` speaks HTTP, `command` is `aotlm-run serve`.
Importing `command` loads neither starlette nor uvicorn.
"""

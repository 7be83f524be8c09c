"""An OpenAI-compatible server for one bundle, and a web page to chat with it.

    request ──schemas──▶ prompts, options ──engine──▶ pieces ──responses──▶ JSON or events (`sse`)

The trace of a request, with the thread of each step:

    event loop     access     the name and the key are checked
    event loop     app        the body becomes a request (`schemas`), which takes a place (`engine`)
    worker         schemas    prompts become token ids
    event loop     engine     `submit`: takes an idle session (`pool`) or waits (`request_queue`)
    answer         answer     each call of the model waits for its turn (`compiled/turns`)
    answer ▶ loop  engine     every piece goes over with `call_soon_threadsafe`
    event loop     responses  pieces become chunks of a stream (`sse`), or one JSON at the end
    event loop     engine     `_finish`: the session is given back, the next in the queue starts
    event loop     sse        a connection that closes before cancels it, wherever it is

`run` opens the socket's loop and ends it; `aotlm-run serve` is in `cli`. Importing this package
loads neither starlette nor uvicorn.
"""

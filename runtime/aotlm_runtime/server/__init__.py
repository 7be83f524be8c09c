"""An OpenAI-compatible server for one bundle, and a web page to chat with it.

    request ──schemas──▶ ids, options ──engine──▶ pieces ──responses──▶ JSON or server-sent events

The trace of a request, with the thread of each step:

    event loop     app        the route; key and body are checked, the body becomes a request
    worker         schemas    the prompt becomes token ids
    event loop     engine     `submit`: takes an idle session (`pool`) or waits (`request_queue`)
    answer         engine     `_generate`: each call of the model waits for its turn (`fair_lock`)
    answer ▶ loop  engine     every piece goes over with `call_soon_threadsafe`
    event loop     responses  pieces become chunks of a stream, or one JSON at the end
    event loop     engine     `_finish`: the session is given back, the next in the queue starts
    event loop     app        a connection that closes before cancels it, wherever it is

`run` opens the socket's loop and ends it; `aotlm-run serve` is in `cli`. Importing this package
loads neither starlette nor uvicorn.
"""

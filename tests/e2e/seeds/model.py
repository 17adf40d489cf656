"""A model without the model: an HTTP server that answers like Anthropic's Messages API (and OpenAI's Chat
Completions), saying what scripts.py has for the task it is given. It runs wherever an agent needs one: beside the
program, or inside a sandbox, which has no network.

    python3 model.py 8080        # then ANTHROPIC_BASE_URL=http://127.0.0.1:8080, and any ANTHROPIC_API_KEY

A script is a generator: it yields tool calls, is sent their results, and returns the last answer. As with the real
API, every request carries the whole conversation, so the server keeps none: it plays the script from the start with the
results it is given. A script that does not like a result raises; the request fails with status 400, and so does the
agent.
"""

import base64
import contextlib
import http.server
import json
import sys
import threading

import scripts


class Refusal(Exception):
    """The request is wrong; the text says how."""

    def __init__(self, text, status=400, kind="invalid_request_error"):
        super().__init__(text)
        self.status = status
        self.kind = kind


def as_blocks(content):
    """Content as a list of blocks; the API also takes a plain text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


class Result:
    """What a tool answered."""

    def __init__(self, content, is_error=False):
        blocks = as_blocks(content)
        self.text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        self.images = [base64.b64decode(block["source"]["data"]) for block in blocks if block["type"] == "image"]
        self.is_error = is_error

    def expect(self, *pieces):
        """Goes on only when the result says all of this."""
        for piece in pieces:
            if piece not in self.text:
                raise ValueError(f"the tool should have answered {piece!r}, not {self.text[:2000]!r}")


# ---- one turn ----


def play(task, tools, results):
    """The model's next turn, as content blocks. `results`: by the id of the call they answer."""
    answered = None
    try:
        run = scripts.find(task)
        for turn in range(len(results) + 1):
            calls = run.send(answered)
            blocks = [call.block(f"toolu_{turn}_{n}", tools) for n, call in enumerate(as_list(calls))]
            found = [results.get(block["id"]) for block in blocks]
            if not any(found):
                return blocks
            if not all(found):
                raise Refusal("`tool_use` ids were found without `tool_result` blocks")
            answered = found if isinstance(calls, list) else found[0]
    except StopIteration as end:
        return [{"type": "text", "text": end.value}]
    except (AssertionError, LookupError, ValueError) as error:
        raise Refusal(f"{type(error).__name__}: {error}") from error
    raise Refusal("there are results for calls that were never made")


def as_list(thing):
    return thing if isinstance(thing, list) else [thing]


# ---- Anthropic's shape ----


def read_messages(request):
    """(task, names of the tools, results) of a request to the Messages API."""
    for field in ("model", "max_tokens", "messages"):
        if field not in request:
            raise Refusal(f"{field}: Field required")
    blocks = [(each["role"], block) for each in request["messages"] for block in as_blocks(each["content"])]
    asked = {block["id"] for role, block in blocks if role == "assistant" and block["type"] == "tool_use"}
    results = {
        block["tool_use_id"]: Result(block.get("content"), block.get("is_error", False))
        for role, block in blocks
        if role == "user" and block["type"] == "tool_result"
    }
    if asked != set(results):
        raise Refusal(f"calls and results do not match: {sorted(asked ^ set(results))}")
    task = "\n".join(block["text"] for role, block in blocks if role == "user" and block["type"] == "text")
    return task, [tool["name"] for tool in request.get("tools", ())], results


def message(request):
    task, tools, results = read_messages(request)
    blocks = play(task, tools, results)
    return {
        "id": f"msg_{len(results)}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": blocks,
        "stop_reason": "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def message_events(request):
    """The same, in the pieces that `stream: true` asks for."""
    whole = message(request)
    yield {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            empty = {**block, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": whole["usage"]}
    yield {"type": "message_stop"}


# ---- OpenAI's shape ----


def completion(request):
    messages = request["messages"]
    results = {each["tool_call_id"]: Result(each["content"]) for each in messages if each["role"] == "tool"}
    task = "\n".join(each["content"] for each in messages if each["role"] == "user")
    blocks = play(task, [tool["function"]["name"] for tool in request.get("tools", ())], results)
    calls = [tool_call(block) for block in blocks if block["type"] == "tool_use"]
    said = "".join(block["text"] for block in blocks if block["type"] == "text") or None
    answer = {"role": "assistant", "content": said, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": answer, "finish_reason": "tool_calls" if calls else "stop"}
    return {"id": "scripted", "object": "chat.completion", "created": 0, "model": request["model"], "choices": [choice]}


def tool_call(block):
    function = {"name": block["name"], "arguments": json.dumps(block["input"])}
    return {"id": block["id"], "type": "function", "function": function}


# ---- the server ----


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        try:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not (self.headers["x-api-key"] or self.headers["Authorization"]):
                raise Refusal("x-api-key header is required", 401, "authentication_error")
            path = self.path.partition("?")[0]
            if path == "/v1/chat/completions":
                self.answer(200, completion(request))
            elif path == "/v1/messages/count_tokens":
                self.answer(200, {"input_tokens": 1})
            elif path != "/v1/messages":
                raise Refusal(f"no such path: {path}", 404, "not_found_error")
            elif request.get("stream"):
                events = list(message_events(request))
                text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
                self.answer(200, text, "text/event-stream")
            else:
                self.answer(200, message(request))
        except Refusal as refusal:
            error = {"type": refusal.kind, "message": str(refusal)}
            self.answer(refusal.status, {"type": "error", "error": error})

    def answer(self, status, body, kind="application/json"):
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *arguments):
        pass


@contextlib.contextmanager
def serve(port=0):
    """The server on a port of this machine, as long as the block lasts; its URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    with serve(int(sys.argv[1]) if sys.argv[1:] else 8080) as url:
        print(f"scripted model on {url}", flush=True)
        threading.Event().wait()

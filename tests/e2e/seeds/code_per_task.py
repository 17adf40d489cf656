"""A tool that runs the model's code in a sandbox of its own each time, and the loop around it, written out. Each call
starts from a clean slate; nothing is left of it when it returns.
"""

from husk import Sandbox

import agent

RUN_CODE = {
    "name": "run_code",
    "description": "Run Python code in a fresh isolated sandbox. Print what you want to see: only output comes back.",
    "input_schema": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
}


def run_code(code):
    # The block's end kills the sandbox; should this program die first, ttl_seconds does.
    with Sandbox.create(template="code-interpreter", ttl_seconds=600) as sandbox:
        result = sandbox.run_code(code, language="python")
        output = result.stdout
        if result.exit_code != 0:
            output += f"\n[exit {result.exit_code}] {result.stderr}"
        return output.strip() or "(no output - did you forget to print?)"


def ask(request):
    messages = [{"role": "user", "content": request}]
    with agent.connect() as client:
        while True:
            response = client.messages.create(model=agent.MODEL, max_tokens=2048, tools=[RUN_CODE], messages=messages)
            messages.append({"role": "assistant", "content": response.content})
            if response.stop_reason != "tool_use":
                return "".join(block.text for block in response.content if block.type == "text")
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": run_code(block.input["code"])}
                for block in response.content
                if block.type == "tool_use" and block.name == "run_code"
            ]
            messages.append({"role": "user", "content": results})


print(run_code("print(sum(range(101)))"))
print(ask("What is the 30th Fibonacci number? Compute it, don't guess."))

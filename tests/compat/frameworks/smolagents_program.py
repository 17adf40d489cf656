"""A CodeAgent of smolagents whose code runs in an E2B sandbox, as its documents show; the model is a script."""

from smolagents import ChatMessage, CodeAgent, MessageRole, Model, tool

STEPS = (
    "import math\nfound = [n for n in range(2, 230) if all(n % d for d in range(2, math.isqrt(n) + 1))]\nprint(len(found))",
    "print('kept:', found[-1])\nprint(double(found[-1]))",  # the state of the step before, and a tool of the agent's
    "1 / 0",
    "final_answer({'last': found[-1], 'doubled': double(found[-1])})",
)


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: the number.
    """
    return 2 * number


class Scripted(Model):
    def __init__(self):
        super().__init__(model_id="scripted")
        self.step = 0
        self.seen = ""

    def generate(self, messages, **_):
        self.seen = str([message.content for message in messages])
        self.step += 1
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: on.\n<code>\n{STEPS[self.step - 1]}\n</code>")


model = Scripted()
with CodeAgent(tools=[double], model=model, executor_type="e2b") as agent:
    result = agent.run("The last of the first 50 primes, doubled.")
for name, right in (
    ("state between steps", "kept: 229" in model.seen),
    ("a tool of the agent's", "458" in model.seen),
    ("an error is the model's to read", "ZeroDivisionError" in model.seen),
    ("final answer", result == {"last": 229, "doubled": 458}),
):
    print(f"ok {name}" if right else f"not ok {name}: {result} {model.seen[-1500:]}")

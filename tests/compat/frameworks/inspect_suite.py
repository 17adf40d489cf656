"""Inspect AI's own checks of a sandbox provider (its self_check), all of them, on the provider `husk` that our SDK registers by its
entry point, and an eval with a scripted model. Run by pytest, with the SDK installed as a package."""

import pytest
from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403


@pytest.fixture
async def sandbox_env(tmp_path_factory):
    """One sandbox for each check."""
    provider = registry_find_sandboxenv("husk")
    made = await provider.sample_init("self_check", None, {})
    try:
        yield made["default"]
    finally:
        await provider.sample_cleanup("self_check", None, made, False)


async def test_eval(tmp_path):
    call = ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "cat note.txt; id -un"})
    task = Task(
        dataset=[Sample("What does the note say?", target="it says 42 to user", files={"note.txt": "it says 42 to "}, sandbox=("husk", "code-interpreter"))],
        solver=[use_tools(bash()), generate()],
        scorer=includes(),
    )

    def answer(messages, *_):
        results = [message.text for message in messages if message.role == "tool"]
        said = ModelOutput.from_content("mockllm/model", results[0]) if results else call
        said.usage = ModelUsage(input_tokens=1, output_tokens=1)  # else it is counted, with a table from the internet
        return said

    model = get_model("mockllm/model", custom_outputs=answer)
    (log,) = await eval_async(task, model=model, log_dir=str(tmp_path))
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1, log.samples[0].messages

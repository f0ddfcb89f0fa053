"""An agent beside a run that trains: it sees the fault while it goes on, and touches nothing."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.agents.test_server import ask, over_stdio

TRAINING = """
import sys, time, hashlib, torch
from torch import nn
import trimtab

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
guard = trimtab.watch(model, optimizer, run_dir=sys.argv[1], mode="observe", observer=False)
for step in range(1000):
    inputs = torch.randn(32, 16)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
    if step >= 400:
        loss = loss * float("nan")
    guard.record(loss=loss)
    loss.backward()
    guard.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(float(sys.argv[2]))
guard.close()
bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(hashlib.sha256(bits).hexdigest())
"""


def train(run: Path, seconds: float) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", TRAINING, str(run), str(seconds)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_an_agent_sees_a_run_die_while_it_trains(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    process = train(tmp_path / "x1", 0.01)

    async def poll() -> dict[str, Any]:
        async with over_stdio(tmp_path) as client:
            token = ""
            while True:
                tool = "changes" if token else "verdict"
                asked = {"run": "x1", "since": token} if token else {"run": "x1"}
                result = await client.call_tool(tool, asked)
                if not result.is_error:
                    answer: dict[str, Any] = json.loads(result.content[0].text)
                    token = answer["token"]
                    if answer["act"] == "stop" or process.poll() is not None:
                        await ask(client, "note", run="x1", text="the loss is not finite")
                        return answer
                await asyncio.sleep(0.1)

    try:
        answer = asyncio.run(asyncio.wait_for(poll(), 120))
        assert process.poll() is None, "it was seen too late"
        assert answer["status"] == "running"
        assert answer["incident"]["onset"] == 400
        watched = process.communicate(timeout=120)[0]
        alone, _ = train(tmp_path / "x2", 0).communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    assert watched == alone  # the same bits as without an agent

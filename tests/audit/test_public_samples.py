"""The public samples: no message brings them, and the result says what one copy for each client would cost."""

from __future__ import annotations

import json

import pytest

from ..helpers.run_cases import finished

FEDMD = {"name": "fedmd", "params": {"rounds": 1, "warm_up_steps": 0, "local_steps": 1, "batch_size": 8}}


@pytest.mark.parametrize(("protocol", "counted"), [(FEDMD, True), (None, False)], ids=["fedmd", "fedavg"])
def test_their_size_is_said_where_the_protocol_uses_them(protocol, counted, tmp_path):
    changes = {"splits__proxy": 0.2, **({"protocol": protocol} if protocol else {})}
    result = json.loads((finished(tmp_path / "run", **changes) / "result.json").read_text())
    said = [line for line in result["limits"] if "public samples before the first message" in line]
    assert len(said) == counted
    if counted:
        for words in ("20 public samples", "2 clients", "2,560 bytes"):
            assert words in said[0]  # 20 images of 8x8 values, for two clients
        assert sum(row["bytes"] for row in result["wire"] if row["sender_role"] == "server") < 2560

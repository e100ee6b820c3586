"""What a program does with the official Python client, of any major; run as a script: BASE_URL."""

import json
import sys
import time

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none")


def line(number: int) -> str:
    messages = [{"role": "user", "content": f"say {number}"}]
    body = {"model": "shout", "messages": messages}
    asked = {"custom_id": f"r-{number}", "method": "POST", "url": "/v1/chat/completions"}
    return json.dumps({**asked, "body": body})


data = "\n".join(line(number) for number in range(20)).encode()
file = client.files.create(file=("x.jsonl", data), purpose="batch")
other = client.files.create(file=("y.jsonl", data), purpose="batch")
assert client.files.content(other.id).content == data
batch = client.batches.create(
    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
)
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.2)
    batch = client.batches.retrieve(batch.id)
assert batch.status == "completed", batch
assert batch.output_file_id is not None
found = [json.loads(each) for each in client.files.content(batch.output_file_id).text.splitlines()]
assert [each["custom_id"] for each in found] == [f"r-{number}" for number in range(20)]
assert next(iter(client.batches.list(limit=1))).id == batch.id
listed = {each.id for each in client.files.list(limit=2)}
assert {file.id, other.id, batch.output_file_id} <= listed
assert [each.id for each in client.models.list()] == ["shout", "gpt-4o-mini"]
for refused, error in (
    (lambda: client.batches.cancel(batch.id), openai.ConflictError),
    (lambda: client.files.retrieve("file-no"), openai.NotFoundError),
    (lambda: client.batches.retrieve("batch_no"), openai.NotFoundError),
):
    try:
        refused()
    except error:
        continue
    raise AssertionError(f"no {error.__name__}")
assert client.files.delete(file.id).deleted
print("passed", openai.__version__)

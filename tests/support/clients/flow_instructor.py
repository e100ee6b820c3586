"""What a program does with the batches of instructor; run as a script, with OPENAI_BASE_URL in the environment."""

import time

from instructor.batch import BatchProcessor
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


processor = BatchProcessor("openai/shout", Person)
names = ["Ada", "Bo", "nobody"]
said = [[{"role": "user", "content": f"who is {name}"}] for name in names]
batch = processor.submit_batch(processor.create_batch_from_messages(said), metadata={"who": "me"})
for _ in range(600):
    status = processor.get_batch_status(batch)["status"]
    if status not in ("validating", "in_progress", "finalizing"):
        break
    time.sleep(0.2)
assert status == "completed", status
assert batch in [each.id for each in processor.list_batches()]
found = {each.custom_id: each for each in processor.retrieve_results(batch)}
assert [found[f"request-{n}"].success for n in range(3)] == [True, True, False], found
assert found["request-0"].result == Person(name="Ada", age=7), found

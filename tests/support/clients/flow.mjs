// What a program does with the official Node client; run as a script: BASE_URL.
import OpenAI, { toFile } from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none" });
const line = (number) =>
  JSON.stringify({
    custom_id: `r-${number}`,
    method: "POST",
    url: "/v1/chat/completions",
    body: { model: "shout", messages: [{ role: "user", content: `say ${number}` }] },
  });
const check = (holds, what) => {
  if (!holds) throw new Error(what);
};
const refused = async (call, kind) => {
  try {
    await call();
  } catch (error) {
    check(error instanceof kind, `${error}`);
    return;
  }
  throw new Error(`no ${kind.name}`);
};

const data = Array.from({ length: 20 }, (_, number) => line(number)).join("\n");
const file = await client.files.create({
  file: await toFile(Buffer.from(data), "x.jsonl"),
  purpose: "batch",
});
let batch = await client.batches.create({
  input_file_id: file.id,
  endpoint: "/v1/chat/completions",
  completion_window: "24h",
});
while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 200));
  batch = await client.batches.retrieve(batch.id);
}
check(batch.status === "completed", JSON.stringify(batch));
const text = await (await client.files.content(batch.output_file_id)).text();
check(text.trim().split("\n").length === 20, "every line");
const seen = [];
for await (const each of client.files.list({ limit: 1 })) seen.push(each.id);
check(seen.includes(file.id) && seen.includes(batch.output_file_id), "files");
const batches = [];
for await (const each of client.batches.list({ limit: 1 })) batches.push(each.id);
check(batches[0] === batch.id, "batches");
await refused(() => client.batches.cancel(batch.id), OpenAI.ConflictError);
await refused(() => client.files.retrieve("file-no"), OpenAI.NotFoundError);
check((await client.files.delete(file.id)).deleted, "deleted");
console.log("passed");

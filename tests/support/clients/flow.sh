# What somebody does with curl alone; run by sh: BASE_URL, beside a file rows.jsonl.
set -eu
ask() { curl --silent --show-error --fail-with-body --max-time 60 "$@"; }
field() { grep -o "\"$1\":\"[^\"]*\"" | head -n 1 | cut -d '"' -f 4; }

file=$(ask "$1/files" -F purpose=batch -F file=@rows.jsonl | field id)
batch=$(ask "$1/batches" -H 'Content-Type: application/json' -d "{\"input_file_id\": \"$file\",
    \"endpoint\": \"/v1/chat/completions\", \"completion_window\": \"24h\"}" | field id)
for _ in $(seq 600); do
    seen=$(ask "$1/batches/$batch")
    case $(echo "$seen" | field status) in
        completed) break ;;
        failed | expired | cancelled) echo "$seen" >&2; exit 1 ;;
    esac
    sleep 0.2
done
ask "$1/files/$(echo "$seen" | field output_file_id)/content"

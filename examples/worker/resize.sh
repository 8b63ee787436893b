#!/bin/sh
# One task of the service `resize`, for `relais worker`. See docs/guides/workers.md.
set -eu
body=$(mktemp)
trap 'rm -f "$body"' EXIT
trap 'exit 143' TERM # told to stop: the task goes to somebody else
cat >"$body"

if [ -e "${RESIZE_BUSY:-/nonexistent}" ]; then
    echo "the machine is busy" >&2
    exit 75 # try again
fi
if [ "$(jq '.percent > 0' "$body")" != true ]; then
    echo "percent must be more than 0" >&2
    exit 1 # failure, with this message
fi
echo "task $RELAIS_TASK_ID of $RELAIS_SERVICE" >&2 # goes to the worker's log
echo "progress 50" >&2
jq --compact-output '{width: (.width * .percent / 100 | floor), height: (.height * .percent / 100 | floor)}' "$body"

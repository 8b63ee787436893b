#!/usr/bin/env bash
# A worker for the service `example`, with curl and jq. See docs/guides/worker-http.md.
set -euo pipefail
url=${RELAIS_URL:-http://127.0.0.1:8080}/v1/services/example
stopping=
trap 'stopping=1' TERM

call() { # call <verb> <body>
    local answer # No answer, 429, 5xx: the server will be back. Any other refusal (curl's 22) is final.
    until answer=$(curl --silent --show-error --fail --max-time 60 --retry 1000 --retry-delay 2 \
        --config <(printf 'user = "%s:%s"' "$RELAIS_CLIENT" "$RELAIS_SECRET") \
        --header 'Content-Type: application/json' --data-binary "$2" "$url/$1"); do
        [[ $? != 22 ]] || return 1
        sleep 2
    done
    jq --compact-output .data <<<"$answer"
}

tell() { # tell <task> <data>
    call messages "$(jq --compact-output --argjson data "$2" '. + {data: $data}' <<<"$1")" >/dev/null
}

work() { # work <task> <seconds> <must succeed>
    local steps step outcome
    steps=$(jq --null-input "$2 | ceil") # as many as seconds, so that the lease never runs out between two
    for ((step = 0; step < steps; step++)); do
        [[ -z $stopping ]] || { call returns "{\"tasks\": [$1]}" >/dev/null; return; }
        tell "$1" "{\"messageType\": \"progress\", \"progress\": $((100 * step / steps))}"
        outcome=$(call heartbeats "{\"tasks\": [$1], \"lease\": \"30s\"}" | jq --raw-output '.outcomes[0].outcome')
        [[ $outcome == accepted ]] || return 0 # Cancelled, or another worker has it: nobody wants our result.
        sleep "$(jq --null-input "$2 / $steps")"
    done
    if [[ $3 == true ]]; then
        tell "$1" "{\"messageType\": \"success\", \"response\": {\"slept\": $2}}"
    else
        tell "$1" '{"messageType": "failure", "errorMessage": "mustSucceed is false"}'
    fi
}

while [[ -z $stopping ]]; do
    claim=$(call claims "{\"wait\": \"10s\", \"lease\": \"30s\", \"hostName\": \"$HOSTNAME\"}")
    [[ $claim != '{"tasks":[]}' ]] || continue
    task=$(jq --compact-output '.tasks[0] | {taskId, attempt}' <<<"$claim")
    read -r seconds must_succeed < <(jq --raw-output '.tasks[0].data.body | "\(.sleep) \(.mustSucceed)"' <<<"$claim")
    work "$task" "$seconds" "$must_succeed"
    [[ ${1:-} != --once ]] || stopping=1
done

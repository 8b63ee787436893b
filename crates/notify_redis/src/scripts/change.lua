-- Writes new states of messages and new messages, with their entries, in one step.
-- ARGV: the plan; then the texts of new messages.
if not position then
  return log_is_gone()
end
local plan = cjson.decode(ARGV[1])

-- A state is written over the one that it was made of, or not at all.
local fits = {}
for number, state in ipairs(plan.states) do
  local found = redis.call('HMGET', message_key(state.id), 'revision', 'outstanding')
  fits[number] = 0
  if found[1] == state.before and (state.seen == '' or found[2] == state.seen) then
    fits[number] = 1
  elseif plan.strict then
    return { 'stale' }
  end
end
if plan.strict then
  for _, new in ipairs(plan.inserts) do
    if redis.call('EXISTS', message_key(new.id)) == 1 then
      return { 'taken' }
    end
  end
end

for number, state in ipairs(plan.states) do
  if fits[number] == 1 then
    local key = message_key(state.id)
    local at = redis.call('HGET', key, 'at')
    redis.call('HSET', key, 'status', state.status, 'attempts', state.attempts, 'resent_at', state.resent_at,
      'due', state.due, 'revision', state.revision, 'outstanding', state.outstanding)
    if state.replaced_by ~= '' then
      redis.call('HSET', key, 'replaced_by', state.replaced_by)
    end
    if state.due == '' then
      redis.call('ZREM', PREFIX .. 'timers', state.id)
    else
      redis.call('ZADD', PREFIX .. 'timers', state.due, state.id)
    end
    if state.status ~= state.was then
      for _, list in ipairs(lists(state.was, state.client)) do
        redis.call('ZREM', list, state.id)
      end
      for _, list in ipairs(lists(state.status, state.client)) do
        redis.call('ZADD', list, at, state.id)
      end
    end
    for _, audience in ipairs(state.keys) do
      if state.is_over then
        redis.call('ZREM', PREFIX .. 'live:' .. audience, state.live)
      end
      if state.is_settled then
        redis.call('ZREM', PREFIX .. 'awaiting:' .. audience, state.id)
      end
    end
    if state.entry ~= '' then
      append(state.keys, 'k', state.entry, 'n', state.id, 'a', state.attempts)
    end
  end
end

local stored = {}
for number, new in ipairs(plan.inserts) do
  local key = message_key(new.id)
  stored[number] = 0
  if redis.call('EXISTS', key) == 0 then
    stored[number] = 1
    local at = append(new.keys, 'k', '0', 'n', new.id)
    -- Members have changed since they were counted: the first acknowledgement counts them anew.
    local outstanding = new.outstanding
    if plan.members ~= '' and plan.members ~= head[3] then
      outstanding = '0'
    end
    redis.call('HSET', key, 'doc', ARGV[number + 1], 'at', at, 'status', '0', 'attempts', '0', 'resent_at', '0',
      'due', new.due, 'revision', '0', 'outstanding', outstanding, 'timeout', new.timeout, 'required', new.required)
    if new.client ~= '' then
      redis.call('HSET', key, 'client', new.client)
    end
    for _, audience in ipairs(new.keys) do
      redis.call('ZADD', PREFIX .. 'live:' .. audience, at, new.live)
      if new.required == '1' then
        redis.call('ZADD', PREFIX .. 'awaiting:' .. audience, at, new.id)
      end
    end
    redis.call('ZADD', PREFIX .. 'timers', new.due, new.id)
    redis.call('ZADD', PREFIX .. 'expirations', new.expiration, new.id)
    for _, status in ipairs({ '0', 'all' }) do
      for _, list in ipairs(lists(status, new.client)) do
        redis.call('ZADD', list, at, new.id)
      end
    end
  end
end
write_position()
return { 'done', head[4], head[1], int(position), fits, stored }

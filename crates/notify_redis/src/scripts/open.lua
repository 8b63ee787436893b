-- Makes the log where there is none. Names it anew where entries were lost or may have been.
-- ARGV: a new epoch; the server's run; a key for tickets; whether a server that was started again has lost nothing; the
-- epoch and the position that this process knows.
local epoch, run, tickets, lossless, known_epoch, known = unpack(ARGV)
local found = redis.call('HMGET', HEAD, 'epoch', 'run')

local function name_anew()
  redis.call('HSET', HEAD, 'epoch', epoch)
  redis.call('XADD', PREFIX .. 'renewed', 'MAXLEN', '1', '*', 'epoch', epoch)
end

-- Positions only grow, also if the stream is all that is left.
local function last_position()
  local last = tonumber(head[1] or 0)
  local stream = redis.pcall('XINFO', 'STREAM', PREFIX .. 'log')
  for number = 1, #stream, 2 do
    if stream[number] == 'last-generated-id' then
      last = math.max(last, tonumber(string.match(stream[number + 1], '^%d+')))
    end
  end
  return int(last)
end

local outcome = 'kept'
if not found[1] then
  local from = last_position()
  redis.call('HSET', HEAD, 'position', from, 'floor', from, 'members', now, 'run', run)
  redis.call('HSETNX', HEAD, 'tickets', tickets)
  name_anew()
  outcome = 'made'
else
  local is_behind = found[1] == known_epoch and position < tonumber(known)
  local is_other_run = run ~= '' and found[2] ~= run
  if is_behind or (is_other_run and lossless ~= '1') then
    redis.call('HSET', HEAD, 'position', last_position())
    name_anew()
    outcome = 'renewed'
  end
  if is_other_run then
    redis.call('HSET', HEAD, 'run', run)
  end
end
return { outcome, redis.call('HGET', HEAD, 'epoch'), redis.call('HGET', HEAD, 'position') }

-- What all scripts share. KEYS[1] is the head of the log; all other keys begin as it does, so one hash tag holds them together.
local HEAD = KEYS[1]
local PREFIX = string.sub(HEAD, 1, -5)

-- Numbers of Lua are written with an exponent if they are large.
local function int(number)
  return string.format('%.0f', number)
end

local function now_in_millis()
  local time = redis.call('TIME')
  return int(time[1] * 1000 + math.floor(time[2] / 1000))
end

local function message_key(id)
  return PREFIX .. 'message:' .. id
end

local head = redis.call('HMGET', HEAD, 'position', 'floor', 'members', 'epoch')
-- A log without a name is not there: an operator took it, so that it gets a new one.
local position = head[4] and tonumber(head[1])
local now = now_in_millis()

-- Nothing is written to a log that is not there: its epoch would not be known.
local function log_is_gone()
  return redis.error_reply('GONE the log of notifications is not there')
end

-- Appends an entry and lists it under audience keys. What was purged leaves their indexes when they are written to.
local function append(keys, ...)
  position = position + 1
  local at = int(position)
  redis.call('XADD', PREFIX .. 'log', at .. '-0', 't', now, ...)
  for _, key in ipairs(keys) do
    local index = PREFIX .. 'entries:' .. key
    redis.call('ZADD', index, at, at)
    redis.call('ZREMRANGEBYSCORE', index, '-inf', head[2])
    redis.call('ZADD', PREFIX .. 'keys', at, key)
  end
  return at
end

local function write_position()
  redis.call('HSET', HEAD, 'position', int(position))
end

-- The lists of operators and emitters that a message is in: all of a status, and those of its client.
local function lists(status, client)
  local found = { PREFIX .. 'list:' .. status .. ':' }
  if client ~= '' then
    found[2] = PREFIX .. 'list:' .. status .. ':' .. client
  end
  return found
end

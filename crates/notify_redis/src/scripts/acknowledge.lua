-- Writes acknowledgements. Answers what was not acknowledged before, and which messages may be settled now.
-- ARGV: the acknowledgements.
if not position then
  return log_is_gone()
end
local fresh, perhaps_settled = {}, {}
for number, one in ipairs(cjson.decode(ARGV[1])) do
  local new = {}
  for _, id in ipairs(one.ids) do
    local key = message_key(id)
    local message = redis.call('HMGET', key, 'at', 'required', 'status', 'outstanding')
    if message[1] then
      local left = tonumber(message[4])
      if redis.call('HSETNX', PREFIX .. 'acknowledged:' .. id, one.user, now) == 1 then
        redis.call('ZADD', PREFIX .. 'read:' .. one.user, message[1], id)
        table.insert(new, id)
        if message[2] == '1' then
          left = redis.call('HINCRBY', key, 'outstanding', '-1')
        end
      end
      -- Also if this is said once more: whoever heard it first may have stopped before it was settled.
      if message[2] == '1' and left <= 0 and (message[3] == '0' or message[3] == '2') then
        -- If the caller stops here, the timer finds out.
        redis.call('ZADD', PREFIX .. 'timers', now, id)
        table.insert(perhaps_settled, id)
      end
    end
  end
  if #new > 0 then
    append({ one.key }, 'k', '3', 'u', one.user, 'i', table.concat(new, ' '))
  end
  fresh[number] = new
end
write_position()
return { head[4], head[1], int(position), fresh, perhaps_settled }

-- Adds to how often messages were sent to users. A message that is not there any more is passed over.
-- ARGV: the deliveries.
for _, one in ipairs(cjson.decode(ARGV[1])) do
  if redis.call('EXISTS', message_key(one.id)) == 1 then
    local key = PREFIX .. 'sent:' .. one.id
    local before = redis.call('HGET', key, one.user)
    local count = 0
    if before then
      count = tonumber(string.match(before, '^%d+'))
    end
    redis.call('HSET', key, one.user, int(count + one.count) .. ' ' .. now)
  end
end
return redis.status_reply('OK')

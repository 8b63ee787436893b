-- Removes messages with their ledgers.
-- ARGV: the messages.
local count = 0
for _, message in ipairs(cjson.decode(ARGV[1])) do
  count = count + redis.call('UNLINK', message_key(message.id))
  redis.call('UNLINK', PREFIX .. 'acknowledged:' .. message.id, PREFIX .. 'sent:' .. message.id)
  redis.call('ZREM', PREFIX .. 'timers', message.id)
  redis.call('ZREM', PREFIX .. 'expirations', message.id)
  for _, key in ipairs(message.keys) do
    redis.call('ZREM', PREFIX .. 'live:' .. key, message.live)
    redis.call('ZREM', PREFIX .. 'awaiting:' .. key, message.id)
  end
  for _, status in ipairs({ 'all', '0', '1', '2', '3', '4' }) do
    for _, list in ipairs(lists(status, message.client)) do
      redis.call('ZREM', list, message.id)
    end
  end
end
return count

-- Removes the indexes of audience keys whose last entry was purged.
-- ARGV: how many at most.
if not position then
  return 0
end
local gone = redis.call('ZRANGEBYSCORE', PREFIX .. 'keys', '-inf', head[2], 'LIMIT', '0', ARGV[1])
for _, key in ipairs(gone) do
  redis.call('UNLINK', PREFIX .. 'entries:' .. key)
  redis.call('ZREM', PREFIX .. 'keys', key)
end
return #gone

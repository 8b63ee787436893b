-- Removes the oldest entries, if they are older than so long.
-- ARGV: how old, in milliseconds; how many at most.
if not position then
  return 0
end
local count = 0
local before = tonumber(now) - tonumber(ARGV[1])
for _, entry in ipairs(redis.call('XRANGE', PREFIX .. 'log', '-', '+', 'COUNT', ARGV[2])) do
  -- The time is the first field.
  if tonumber(entry[2][2]) >= before then
    break
  end
  count = count + 1
  head[2] = string.match(entry[1], '^%d+')
end
if count > 0 then
  -- From the beginning, where all that are counted are.
  redis.call('XTRIM', PREFIX .. 'log', 'MAXLEN', int(redis.call('XLEN', PREFIX .. 'log') - count))
  redis.call('HSET', HEAD, 'floor', head[2])
end
return count

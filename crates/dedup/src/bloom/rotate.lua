-- KEYS: the younger generation, the older one, since when the younger one is added to.
-- ARGV: what to add or to look for, the window in ms, the share of false answers, the number of ids.
local time = redis.call('TIME')
local now, window = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])
local since = tonumber(redis.call('GET', KEYS[3]) or '')
if not since or now - since >= window then
  redis.call('UNLINK', KEYS[2])
  if since and now - since < 2 * window and redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('RENAME', KEYS[1], KEYS[2])
    redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', since + 2 * window))
  elseif since then
    redis.call('UNLINK', KEYS[1])
  end
  since = now
  redis.call('SET', KEYS[3], string.format('%.0f', now), 'PX', string.format('%.0f', 2 * window))
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('BF.RESERVE', KEYS[1], ARGV[3], ARGV[4], 'EXPANSION', '2')
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', since + 2 * window))
end

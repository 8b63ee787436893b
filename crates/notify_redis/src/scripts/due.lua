-- Reads which messages come first in one of the indexes by time, up to so long ago.
-- ARGV: the index; how long ago, in milliseconds; how many at most; whether that moment itself counts.
local until_when = int(tonumber(now) - tonumber(ARGV[2]))
if ARGV[4] ~= '1' then
  until_when = '(' .. until_when
end
local ids = redis.call('ZRANGEBYSCORE', PREFIX .. ARGV[1], '-inf', until_when, 'LIMIT', '0', ARGV[3])
return { now, ids }

-- Lets a claim (ARGV[1]) last for ARGV[2] ms, unless somebody else has the message (KEYS[1]) by now.
local value = redis.call('GET', KEYS[1])
if value and value ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1

-- Removes a claim (ARGV[1]), unless somebody else has the message (KEYS[1]) by now.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])

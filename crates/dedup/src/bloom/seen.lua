if redis.call('BF.EXISTS', KEYS[1], ARGV[1]) == 1 then return 1 end
return redis.call('BF.EXISTS', KEYS[2], ARGV[1])

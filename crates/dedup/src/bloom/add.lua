return redis.call('BF.ADD', KEYS[1], ARGV[1])

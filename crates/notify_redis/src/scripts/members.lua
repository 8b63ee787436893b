-- Changes the members of a target, if nobody has changed any since they were read.
-- ARGV: the plan; what the entry says.
if not position then
  return log_is_gone()
end
local plan = cjson.decode(ARGV[1])
if head[3] ~= plan.members then
  return { 'stale' }
end
local since = append(plan.told, 'k', '4', 'd', ARGV[2])
for _, part in ipairs(plan.left) do
  redis.call('HDEL', PREFIX .. 'parts:' .. plan.key, part)
  redis.call('HDEL', PREFIX .. 'wholes:' .. part, plan.key)
  redis.call('ZREM', PREFIX .. 'names:' .. plan.key, part)
end
for _, part in ipairs(plan.joined) do
  redis.call('HSET', PREFIX .. 'parts:' .. plan.key, part, since)
  redis.call('HSET', PREFIX .. 'wholes:' .. part, plan.key, since)
  redis.call('ZADD', PREFIX .. 'names:' .. plan.key, '0', part)
end
redis.call('HINCRBY', HEAD, 'members', '1')
write_position()
return { 'done', head[4], head[1], since }

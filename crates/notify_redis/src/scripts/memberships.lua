-- Reads what belongs to targets, directly or not, or what they belong to, as it is at one moment. What that means for users is
-- for the caller to say.
-- ARGV: parts or wholes; then the targets.
local direction = ARGV[1]
local seen, waiting, found = {}, {}, { head[3] or '' }
for number = 2, #ARGV do
  if not seen[ARGV[number]] then
    seen[ARGV[number]] = true
    table.insert(waiting, ARGV[number])
  end
end
local current = 1
while waiting[current] do
  local key = waiting[current]
  current = current + 1
  local linked = redis.call('HGETALL', PREFIX .. direction .. ':' .. key)
  if #linked > 0 then
    table.insert(found, { key, linked })
    for number = 1, #linked, 2 do
      local other = linked[number]
      -- Users have no parts.
      if not seen[other] and not (direction == 'parts' and string.sub(other, 1, 5) == 'USER ') then
        seen[other] = true
        table.insert(waiting, other)
      end
    end
  end
end
return found

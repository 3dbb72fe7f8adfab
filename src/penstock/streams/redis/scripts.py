"""The Lua scripts of Redis Streams: each is one atomic step on one partition.

Beside the key of a partition, KEY, there may be `{KEY}:trimmed`, which says what our own trimming has removed, and
`{KEY}:producer:ID`, which says what a producer stored last, until it expires. The braces keep them in one hash slot.
"""

from __future__ import annotations

from typing import Final

_INFO: Final = """
local function info_of(key)
  local info = {}
  local pairs_of = redis.call('XINFO', 'STREAM', key)
  for index = 1, #pairs_of, 2 do info[pairs_of[index]] = pairs_of[index + 1] end
  return info
end
"""

# The first id ('' if it is empty), the last id ever, how many entries were ever added, how many there are, and what our
# trimming noted. Nothing if there is no such key. KEYS: partition, its `trimmed`.
STATE: Final = (
    _INFO
    + """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local info = info_of(KEYS[1])
local first = info['first-entry']
return {first and first[1] or '', info['last-generated-id'], info['entries-added'] or '', info['length'],
  redis.call('GET', KEYS[2]) or ''}
"""
)

# Append a batch once: the id of its first entry, the others follow it. Nothing if there is no such partition.
# Trimming notes `REMOVED LAST`: how many entries are gone in all, and the last id of those. So a reader can tell
# whether it has missed any: Redis itself does not remember what XTRIM has removed.
# KEYS: partition, the producer's key, `trimmed`. ARGV: number of the batch, seconds to remember it, how many entries to
# keep, their age in ms (or empty); then for each entry the number of its arguments, and these.
APPEND: Final = (
    _INFO
    + """
local number, remember_s, max_length, max_age_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local before = redis.call('GET', KEYS[2])
if before then
  local stored, first = string.match(before, '^(%d+) (.+)$')
  if stored == number then
    redis.call('EXPIRE', KEYS[2], remember_s)
    return first
  end
end
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local first, ms
local at = 5
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  local id = redis.call('XADD', KEYS[1], ms and (ms .. '-*') or '*', unpack(ARGV, at + 1, at + count))
  if not first then
    first = id
    ms = string.match(id, '^%d+')
  end
  at = at + count + 1
end
redis.call('SET', KEYS[2], number .. ' ' .. first, 'EX', remember_s)
local last
if max_length ~= '' and redis.call('XLEN', KEYS[1]) > tonumber(max_length) * 1.1 + 100 then
  redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', string.format('%.0f', tonumber(max_length) + 1))
  last = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1][1]
  redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', max_length)
end
if max_age_ms ~= '' then
  local now = redis.call('TIME')
  local oldest = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) - tonumber(max_age_ms))
  local expired = redis.call('XREVRANGE', KEYS[1], '(' .. oldest .. '-0', '-', 'COUNT', 1)[1]
  if expired then
    redis.call('XTRIM', KEYS[1], 'MINID', '=', oldest)
    last = expired[1]
  end
end
if last then
  local info = info_of(KEYS[1])
  redis.call('SET', KEYS[3], string.format('%.0f %s', info['entries-added'] - info['length'], last))
end
return first
"""
)

# Create a topic: 1, or 0 if it is there. KEYS: `{TOPIC}:partitions`, then all partitions.
CREATE: Final = """
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
for index = 2, #KEYS do
  redis.call('DEL', KEYS[index], '{' .. KEYS[index] .. '}:trimmed')
  redis.call('XGROUP', 'CREATE', KEYS[index], 'penstock', '0', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', KEYS[index], 'penstock')
end
redis.call('DEL', KEYS[1])
if #KEYS > 2 then redis.call('SET', KEYS[1], #KEYS - 1) end
return 1
"""

"""The Lua scripts for Redis: each is one atomic step on keys with the hash tag of their group.

A lease is stored as the text `EPOCH BEAT TOKEN OWNER`; the owner is empty when the lease is free. The token is that of
the claim, so that a claim that is sent again after its answer was lost is recognised and not refused.

Scripts check first and write last: Redis does not roll back when a script fails in the middle.
"""

from __future__ import annotations

from typing import Final

_LEASE: Final = """
local function lease_of(name)
  local stored = redis.call('HGET', KEYS[1], name)
  if not stored then return nil end
  local epoch, beat, token, owner = string.match(stored, '^(%d+) (%d+) (%S+) (.*)$')
  return {epoch = epoch, beat = beat, token = token, owner = owner}
end
local function put_lease(name, epoch, beat, token, owner)
  redis.call('HSET', KEYS[1], name, epoch .. ' ' .. beat .. ' ' .. token .. ' ' .. owner)
end
local function one_more(number)
  return string.format('%.0f', tonumber(number) + 1)
end
local function is_held(lease, owner, epoch)
  return lease and owner ~= '' and lease.owner == owner and lease.epoch == epoch
end
"""

_TEXTS: Final = """
local function texts_in(packed)
  local texts, position = {}, 1
  while position <= #packed do
    texts[#texts + 1], position = struct.unpack('>I4c0', packed, position)
  end
  return texts
end
local function in_pieces(texts, command, key, ...)
  for first = 1, #texts, 4000 do
    local arguments = {command, key, ...}
    for index = first, math.min(first + 3999, #texts) do arguments[#arguments + 1] = texts[index] end
    redis.call(unpack(arguments))
  end
end
"""

# KEYS: leases, floor: the highest epoch when the group was last deleted, so that no old owner ever matches again.
# ARGV: name, whether one was seen, its epoch, beat and owner, the new owner, the token of this claim.
CLAIM: Final = (
    _LEASE
    + """
local name, seen, epoch, beat, owner, claimer, token = unpack(ARGV)
local lease = lease_of(name)
if lease and lease.token == token then
  put_lease(name, lease.epoch, lease.beat, token, lease.owner)
  return lease.epoch
end
if seen == '0' then
  if lease then return false end
  local first_epoch = one_more(redis.call('GET', KEYS[2]) or '0')
  put_lease(name, first_epoch, '0', token, claimer)
  return first_epoch
end
if not lease or lease.epoch ~= epoch or lease.beat ~= beat or lease.owner ~= owner then return false end
local next_epoch = one_more(epoch)
put_lease(name, next_epoch, '0', token, claimer)
return next_epoch
"""
)

# KEYS: leases. ARGV: name, owner, epoch.
RENEW: Final = (
    _LEASE
    + """
local name, owner, epoch = unpack(ARGV)
local lease = lease_of(name)
if not is_held(lease, owner, epoch) then return false end
local beat = one_more(lease.beat)
put_lease(name, epoch, beat, lease.token, owner)
return beat
"""
)

# KEYS: leases. ARGV: name, owner, epoch.
RELEASE: Final = (
    _LEASE
    + """
local name, owner, epoch = unpack(ARGV)
local lease = lease_of(name)
if is_held(lease, owner, epoch) then put_lease(name, epoch, lease.beat, lease.token, '') end
"""
)

# KEYS: leases. ARGV: name, owner, epoch, beat.
FORGET_LEASE: Final = (
    _LEASE
    + """
local name, owner, epoch, beat = unpack(ARGV)
local lease = lease_of(name)
if lease and lease.owner == owner and lease.epoch == epoch and lease.beat == beat then
  redis.call('HDEL', KEYS[1], name)
end
"""
)

# KEYS: leases, checkpoints, changes, state, history, handled. ARGV: name, owner, epoch; field, checkpoint, the digest
# of the change; packed texts: state to set (key, value, ...), state to remove, history entries, handled (time, id,
# ...); the times before which idempotency keys and history entries are deleted, or empty.
SAVE: Final = (
    _LEASE
    + _TEXTS
    + """
local name, owner, epoch, field, checkpoint, digest, set, removed, lines, handled, handled_before, lines_before =
  unpack(ARGV)
if not is_held(lease_of(name), owner, epoch) then return 'fenced' end
local repeated = redis.call('HGET', KEYS[3], field) == digest
redis.call('HSET', KEYS[3], field, digest)
if repeated then return 'repeated' end
redis.call('HSET', KEYS[2], field, checkpoint)
in_pieces(texts_in(set), 'HSET', KEYS[4])
in_pieces(texts_in(removed), 'HDEL', KEYS[4])
local new_lines = texts_in(lines)
in_pieces(new_lines, 'RPUSH', KEYS[5])
redis.call('HINCRBY', KEYS[3], 'lines ' .. field, #new_lines)
in_pieces(texts_in(handled), 'ZADD', KEYS[6], 'GT')
if handled_before ~= '' then redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', '(' .. handled_before) end
if lines_before ~= '' then
  local since = redis.call('HGET', KEYS[3], 'since ' .. field)
  if not since or tonumber(since) < tonumber(lines_before) then
    redis.call('HSET', KEYS[3], 'since ' .. field, lines_before)
  end
  for _ = 1, 20000 do
    local oldest = redis.call('LINDEX', KEYS[5], 0)
    if not oldest or tonumber(string.match(oldest, '^-?%d+')) >= tonumber(lines_before) then break end
    redis.call('LPOP', KEYS[5])
  end
end
return 'saved'
"""
)

# A page of history entries, counted back from the end as it was after `total` entries; empty: as it is now. Also the
# time before which entries are deleted: that starts with the oldest, so one that ended late may keep earlier ones for a
# while.
# KEYS: changes, history. ARGV: field, total, how many entries to skip, how many to return.
LINES: Final = """
local now = tonumber(redis.call('HGET', KEYS[1], 'lines ' .. ARGV[1]) or '0')
local total = tonumber(ARGV[2]) or now
local last = now - total + tonumber(ARGV[3])
local since = redis.call('HGET', KEYS[1], 'since ' .. ARGV[1]) or ''
return {string.format('%.0f', total), since, redis.call('LRANGE', KEYS[2], -last - tonumber(ARGV[4]), -last - 1)}
"""

# KEYS: leases, floor, checkpoints, and everything else the group has. ARGV: the fields of checkpoints that KEYS cover.
FORGET_GROUP: Final = (
    _LEASE
    + """
local floor = tonumber(redis.call('GET', KEYS[2]) or '0')
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  local lease = lease_of(name)
  if lease.owner ~= '' then return {'held', name, lease.owner} end
  floor = math.max(floor, tonumber(lease.epoch))
end
local covered = {}
for _, field in ipairs(ARGV) do covered[field] = true end
for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do
  if not covered[field] then return {'changed'} end
end
redis.call('SET', KEYS[2], string.format('%.0f', floor))
redis.call('UNLINK', KEYS[1])
for index = 3, #KEYS do redis.call('UNLINK', KEYS[index]) end
return {'forgotten'}
"""
)

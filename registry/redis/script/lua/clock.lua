-- Redis's clock: {seconds, microseconds}. ARGV: prefix. It is also what finds out
-- whether Redis is well again, so it writes, to no effect, as the other scripts do.
call('PEXPIRE', P .. 'clock', HOLD)
return { tonumber(time[1]), tonumber(time[2]) }

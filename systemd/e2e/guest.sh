#!/bin/bash
# Runs inside the guest of scripts/systemd-test: the units as an operator installs them, a Redis with a
# password, a simulated engine; the broker is away, so that READY comes in the degraded mode.
set -u
failed=0
check() { # what, command...
  local what=$1
  shift
  if "$@"; then echo "$SECONDS s  ok    $what"; else echo "$SECONDS s  FAIL  $what"; failed=1; fi
}
eventually() { # seconds, command...
  local end=$((SECONDS + $1))
  shift
  until "$@" 2>/dev/null; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.1
  done
}
show() { systemctl show -P "$2" "$1"; }
is() { [ "$(show "$1" "$2")" = "$3" ]; }
says() { [[ $(show "$1" StatusText) == *$2* ]]; }
lacks() { [[ $(show "$1" StatusText) != *$2* ]]; }
logged() { journalctl -q -u "$1" | grep -q "$2"; }

systemd-sysusers /mnt/penstock.sysusers
mkdir -p /etc/penstock
echo secret-of-redis > /etc/penstock/redis-password
echo 'AK SK' > /etc/penstock/rocketmq-credentials
head -c 32 /dev/urandom | base64 > /etc/penstock/gossip-key
chmod 600 /etc/penstock/*
cat > /etc/penstock/agent-gpu0.env <<'ENV'
PENSTOCK_ENGINE=http://127.0.0.1:8000
PENSTOCK_ROCKETMQ=127.0.0.1:8081
PENSTOCK_REDIS=127.0.0.1:6379
PENSTOCK_GRACE=3s
ENV
cat > /etc/penstock/gateway.env <<'ENV'
PENSTOCK_ROCKETMQ=127.0.0.1:8081
PENSTOCK_REDIS=127.0.0.1:6379
PENSTOCK_GRACE=3s
ENV
drop_in() { # unit, role
  local dir=/etc/systemd/system/$1.service.d
  mkdir -p "$dir"
  cp /mnt/drop-ins/credentials.conf "$dir/"
  printf '[Service]\nExecStart=\nExecStart=/mnt/penstock %s\nWatchdogSec=2\nTimeoutAbortSec=1\n' "$2" > "$dir/test.conf"
}
drop_in penstock-agent@ agent
drop_in penstock-gateway gateway
systemctl daemon-reload
ip link set lo up
systemd-run -q --unit e2e-redis redis-server --port 6379 --requirepass secret-of-redis
systemd-run -q --unit e2e-engine /mnt/penstock sim engine --listen 127.0.0.1:8000

live() { # unit: its whole life
  local unit=$1
  check "$unit starts with the broker away" systemctl start "$unit"
  check "$unit says what is missing" eventually 10 says "$unit" rocketmq
  check "$unit has the Redis password from its credential" eventually 10 lacks "$unit" redis
  check "$unit runs as penstock" test "$(ps -o user= -p "$(show "$unit" MainPID)")" = penstock
  check "$unit reloads" systemctl reload "$unit"
  check "$unit logs the reload" eventually 5 logged "$unit" reloaded
  kill -STOP "$(show "$unit" MainPID)"
  check "$unit is ended by the watchdog when it hangs" eventually 15 is "$unit" NRestarts 1
  check "$unit is back" eventually 10 is "$unit" ActiveState active
  kill -KILL "$(show "$unit" MainPID)"
  check "$unit comes back after a kill" eventually 15 is "$unit" NRestarts 2
  check "$unit is back again" eventually 10 is "$unit" ActiveState active
  check "$unit stays active, watchdog fed" bash -c "sleep 5; [ \$(systemctl show -P NRestarts $unit) = 2 ]"
  check "$unit stops" systemctl stop "$unit"
  check "$unit ended with 0" is "$unit" ExecMainStatus 0
  check "$unit ended in good order" is "$unit" Result success
  [ $failed = 0 ] || journalctl -q -u "$unit" | tail -40
  return $failed
}
live penstock-agent@gpu0 &
agent=$!
live penstock-gateway || failed=1
wait $agent || failed=1
exit $failed

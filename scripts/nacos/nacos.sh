#!/usr/bin/env bash
# A real Nacos 2.3.2 (standalone, Derby inside) on 127.0.0.1, from Maven jars.
#   nacos.sh fetch            download the jars (149 MB; does nothing when they are there)
#   nacos.sh start            start it and print host:port
#   nacos.sh stop | kill      with a signal it may act upon, or -9; what was written stays
#   nacos.sh status
#   nacos.sh clean            stop and delete data and logs
# With NACOS_AUTH=1, set for start: it asks for a user; there is nacos with the password nacos.
# Needs bash, curl, a JDK of 11 or later, and Maven. Everything lies below ${PENSTOCK_CACHE:-~/.cache/penstock}/nacos:
# jars/, and PORT/ with data and logs (another NACOS_PORT makes a second one). 0.4 GB of memory.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${PENSTOCK_CACHE:-$HOME/.cache/penstock}/nacos
port=${NACOS_PORT:-18848} # also uses this port -1000, +1000 and +1001
dir=$cache/$port jars=$cache/jars
heap=${NACOS_HEAP:-256m}
within=${NACOS_START_TIMEOUT:-120} # seconds
java=${JAVA_HOME:+$JAVA_HOME/bin/}java

say() { printf 'nacos: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

fetch() {
  local key
  key=$(cksum <"$here/pom.xml")
  if [[ -f $jars/done && $(cat "$jars/done") == "$key" ]]; then return; fi
  rm -rf "$jars"
  mkdir -p "$jars"
  # shellcheck disable=SC2086
  mvn -B -q ${MAVEN_ARGS:-} -f "$here/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$jars/lib" >&2 # Maven prints colours even with -q
  printf '%s\n' "$key" >"$jars/done"
  say "fetched $(du -sh "$jars" | cut -f1) into $jars"
}

# The pid file names a process of ours only while its command line still carries our mark.
running() {
  local pid
  pid=$(cat "$dir/pid" 2>/dev/null) && [[ -r /proc/$pid/cmdline ]] || return 1
  tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qxF -- "-Dnacos.home=$dir" || return 1
  printf '%s\n' "$pid"
}

ready() { curl -sf -m 5 -o /dev/null "http://127.0.0.1:$port/nacos/v1/console/health/readiness"; }

start() {
  fetch
  if ! running >/dev/null; then
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then die "port $port is in use"; fi
    launch
  fi
  local end=$((SECONDS + within))
  until ready; do
    running >/dev/null || { tail -n 20 "$dir/out" >&2; die "it died at its start"; }
    ((SECONDS < end)) || { tail -n 20 "$dir/out" >&2; die "it is not ready after $within s"; }
    sleep 0.2
  done
  say "ready (pid $(running))"
  printf '127.0.0.1:%s\n' "$port"
}

launch() {
  local auth=()
  if [[ -n ${NACOS_AUTH:-} ]]; then
    auth=(--nacos.core.auth.enabled=true --nacos.core.auth.system.type=nacos --nacos.core.auth.server.identity.key=tester --nacos.core.auth.server.identity.value=tester
      "--nacos.core.auth.plugin.nacos.token.secret.key=$(head -c 32 /dev/urandom | base64 -w 0)")
  fi
  mkdir -p "$dir/tmp"
  cd "$dir"
  setsid "$java" -Xms64m "-Xmx$heap" -Xss512k -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+ExitOnOutOfMemoryError \
    -Dnacos.standalone=true "-Dnacos.home=$dir" "-Duser.home=$dir" "-Djava.io.tmpdir=$dir/tmp" -Djava.net.preferIPv4Stack=true \
    --add-opens java.base/java.lang=ALL-UNNAMED --add-opens java.base/java.util=ALL-UNNAMED \
    -cp "$jars/lib/*" com.alibaba.nacos.Nacos --server.port="$port" --server.address=127.0.0.1 \
    --nacos.inetutils.ip-address=127.0.0.1 --server.tomcat.accesslog.enabled=false "${auth[@]}" >"$dir/out" 2>&1 </dev/null &
  printf '%s\n' "$!" >"$dir/pid"
  disown
  # Until Java is executed its process carries no mark, and looks like one that died.
  for _ in {1..50}; do
    if running >/dev/null; then break; fi
    sleep 0.1
  done
}

halt() { # SIGNAL
  local pid n
  if pid=$(running); then
    kill "-$1" "$pid" 2>/dev/null || true
    for ((n = 0; n < 150; n++)); do
      [[ -d /proc/$pid ]] || break
      if ((n == 100)); then kill -KILL "$pid" 2>/dev/null || true; fi
      sleep 0.1
    done
  fi
  rm -f "$dir/pid"
}

status() {
  local pid
  pid=$(running) || { echo "not running"; return 1; }
  echo "pid $pid, rss $(($(awk '/^VmRSS/ {print $2}' "/proc/$pid/status") / 1024)) MiB, on 127.0.0.1:$port"
}

case ${1:-} in
fetch | start | status) "$1" ;;
stop) halt TERM ;;
kill) halt KILL ;;
clean) halt TERM; rm -rf "$dir" ;;
*) sed -n '2,/^set/p' "${BASH_SOURCE[0]}" | sed '$d;s/^# \{0,1\}//'; exit 2 ;;
esac

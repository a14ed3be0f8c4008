#!/usr/bin/env bash
# A real RocketMQ (name server, broker, proxy in cluster mode) on 127.0.0.1, from Maven jars.
#   rocketmq.sh fetch                     download the jars (168 MB; does nothing when they are there)
#   rocketmq.sh start                     start all three, create topic and group, print the endpoint
#   rocketmq.sh topic [NAME] [MINUTES]    create or update a LITE parent topic (-1 = lanes never expire)
#   rocketmq.sh group [NAME] [TOPIC] [A]  create or update the ordered group bound to TOPIC; A: more "+key=value,..."
#   rocketmq.sh admin                     run mqadmin commands from standard input in one JVM
#   rocketmq.sh status | stop
#   rocketmq.sh {kill,term,start,restart}-{namesrv,broker,proxy}   one of them (kill = -9)
#   rocketmq.sh clean                     stop and delete data and logs
# With RMQ_SECURE=1, set for every command: the proxy speaks TLS only, and asks for a user. Below
# $ROCKETMQ_DIR/secure are the issuer ca.pem, and as AccessKey and SecretKey a line each the files
# "penstock" (may use topic and group), "publisher" (may publish), "stranger" (may do nothing), "admin".
# With RMQ_FAST=1 the three start in half the CPU time, and do less under full load: no second compiler, and
# class data that the first start leaves beside the jars.
# Needs bash, a JDK of 17 or later, and Maven. Everything lies below
# ${PENSTOCK_CACHE:-~/.cache/penstock}/rocketmq: jars/, and run/ with data and logs
# (ROCKETMQ_DIR and the RMQ_..._PORT variables make a second stack). 0.6 to 0.8 GB of memory.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${PENSTOCK_CACHE:-$HOME/.cache/penstock}/rocketmq
ROCKETMQ_DIR=${ROCKETMQ_DIR:-$cache/run}
ROCKETMQ_JARS=${ROCKETMQ_JARS:-$cache/jars}
RMQ_NAMESRV_PORT=${RMQ_NAMESRV_PORT:-9876}
RMQ_BROKER_PORT=${RMQ_BROKER_PORT:-10911} # also uses this port -2 and +1
RMQ_GRPC_PORT=${RMQ_GRPC_PORT:-8081}
RMQ_REMOTING_PORT=${RMQ_REMOTING_PORT:-8080}
RMQ_RETRY_MAX=${RMQ_RETRY_MAX:-10000}
RMQ_NAMESRV_HEAP=${RMQ_NAMESRV_HEAP:-64m}
RMQ_BROKER_HEAP=${RMQ_BROKER_HEAP:-256m}
RMQ_PROXY_HEAP=${RMQ_PROXY_HEAP:-192m}
RMQ_START_TIMEOUT=${RMQ_START_TIMEOUT:-120}
RMQ_BROKER_OPTS=${RMQ_BROKER_OPTS:-}
RMQ_PROXY_OPTS=${RMQ_PROXY_OPTS:-}
RMQ_SECURE=${RMQ_SECURE:-}
RMQ_FAST=${RMQ_FAST:-}
RMQ_BROKER_CONF=${RMQ_BROKER_CONF:-} # more broker.conf lines, separated by ';'; the last of a name counts

conf=$ROCKETMQ_DIR/conf data=$ROCKETMQ_DIR/data run=$ROCKETMQ_DIR/run log=$ROCKETMQ_DIR/log
secure=$ROCKETMQ_DIR/secure
jars=$ROCKETMQ_JARS/lib broker_jars=$ROCKETMQ_JARS/lib-broker
java=${JAVA_HOME:+$JAVA_HOME/bin/}java javac=${JAVA_HOME:+$JAVA_HOME/bin/}javac

say() { printf 'rocketmq: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

copy_deps() { # pom, directory
  mvn -B -q ${MAVEN_ARGS:-} -f "$1" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$2"
}

fetch() {
  local key f
  key=$(cat "$here/pom.xml" "$here/broker-pom.xml" "$here/RmqAdmin.java" | cksum)
  if [[ -f $ROCKETMQ_JARS/done && $(cat "$ROCKETMQ_JARS/done") == "$key" ]]; then
    say "jars are in $ROCKETMQ_JARS ($(du -sh "$ROCKETMQ_JARS" | cut -f1))"
    return
  fi
  rm -rf "$jars" "$broker_jars" "$ROCKETMQ_JARS/classes" "$ROCKETMQ_JARS/done" "$ROCKETMQ_JARS"/*.jsa
  mkdir -p "$jars" "$broker_jars" "$ROCKETMQ_JARS/classes"
  copy_deps "$here/pom.xml" "$jars"
  copy_deps "$here/broker-pom.xml" "$broker_jars"
  # Same file in both folders: keep one copy on disk.
  for f in "$broker_jars"/*.jar; do
    if cmp -s "$f" "$jars/${f##*/}"; then ln -f "$jars/${f##*/}" "$f"; fi
  done
  "$javac" -nowarn -cp "$jars/*" -d "$ROCKETMQ_JARS/classes" "$here/RmqAdmin.java"
  printf '%s\n' "$key" >"$ROCKETMQ_JARS/done"
  say "fetched $(find "$jars" "$broker_jars" -name '*.jar' | wc -l) jars, $(du -sh "$ROCKETMQ_JARS" | cut -f1) on disk, in $ROCKETMQ_JARS"
}

# A pid file names a process of ours only while its command line still carries our mark.
pid_of() {
  local pid
  [[ -f $run/$1.pid ]] || return 1
  pid=$(cat "$run/$1.pid")
  [[ -r /proc/$pid/cmdline ]] || return 1
  tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qxF -- "-Drmq.mark=$ROCKETMQ_DIR/$1" || return 1
  printf '%s\n' "$pid"
}

port_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# The configuration is deploy/rocketmq's with our ports and paths.
render() {
  sed -e "s|@NAMESRV_PORT@|$RMQ_NAMESRV_PORT|g" -e "s|@DATA@|$data|g" "$here/namesrv.conf.tmpl" >"$conf/namesrv.conf"
  sed -e "s|127.0.0.1:9876|127.0.0.1:$RMQ_NAMESRV_PORT|" -e "s|/var/lib/rocketmq|$data|" \
    -e "s|^listenPort=.*|listenPort=$RMQ_BROKER_PORT|" -e "s|^haListenPort=.*|haListenPort=$((RMQ_BROKER_PORT + 1))|" \
    "$here/../../deploy/rocketmq/broker.conf" >"$conf/broker.conf"
  # Small files for a small machine.
  printf '%s\n' mappedFileSizeCommitLog=67108864 mappedFileSizeConsumeQueue=600000 >>"$conf/broker.conf"
  if [[ -n $RMQ_BROKER_CONF ]]; then tr ';' '\n' <<<"$RMQ_BROKER_CONF" >>"$conf/broker.conf"; fi
  sed -e "s|127.0.0.1:9876|127.0.0.1:$RMQ_NAMESRV_PORT|" -e "s|: 8081|: $RMQ_GRPC_PORT|" -e "s|: 8080|: $RMQ_REMOTING_PORT|" \
    "$here/../../deploy/rocketmq/rmq-proxy.json" >"$conf/rmq-proxy.json"
  rm -f "$conf/tools.yml"
  if [[ -n $RMQ_SECURE ]]; then render_secure; fi
}

# The same with deploy/rocketmq's additions for TLS and users. mqadmin reads tools.yml.
render_secure() {
  local user secret
  mkdir -p "$secure"
  [[ -f $secure/proxy.pem ]] || certificates
  for user in admin penstock publisher stranger; do
    [[ -f $secure/$user ]] || (umask 077 && printf '%s\n%s\n' "$user" "$(openssl rand -hex 16)" >"$secure/$user")
  done
  secret=$(tail -n 1 "$secure/admin")
  # Broker 5.5.1 cannot call the authorization of 5.5.0, the newest that Maven has: the proxy alone asks for rights.
  sed -e "s|ADMIN_SECRET|$secret|" -e 's|^authorizationEnabled=true|authorizationEnabled=false|' \
    "$here/../../deploy/rocketmq/broker-access.conf" >>"$conf/broker.conf"
  { sed -e '$d' -e '/BatchSize/s|$|,|' "$conf/rmq-proxy.json"
    sed -e 1d -e "s|ADMIN_SECRET|$secret|" -e "s|/etc/rocketmq|$secure|" "$here/../../deploy/rocketmq/rmq-proxy-access.json"; } >"$conf/rmq-proxy.new"
  mv "$conf/rmq-proxy.new" "$conf/rmq-proxy.json"
  printf 'accessKey: admin\nsecretKey: %s\n' "$secret" >"$conf/tools.yml"
}

# certificates makes an issuer of our own and the proxy's certificate.
certificates() {
  local name
  for name in ca proxy; do
    openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out "$secure/$name.key"
  done
  openssl req -x509 -new -key "$secure/ca.key" -days 3650 -subj "/CN=penstock test issuer" -out "$secure/ca.pem"
  openssl req -new -key "$secure/proxy.key" -subj "/CN=localhost" |
    openssl x509 -req -days 3650 -CA "$secure/ca.pem" -CAkey "$secure/ca.key" -CAcreateserial -out "$secure/proxy.pem" \
      -extfile <(echo "subjectAltName=IP:127.0.0.1,DNS:localhost") 2>/dev/null
}

# launch NAME HEAP CLASSPATH JVM-OPTIONS MAIN ARGS...
launch() {
  local name=$1 heap=$2 cp=$3 opts=$4
  shift 4
  mkdir -p "$ROCKETMQ_DIR/home/$name"
  if [[ -n $RMQ_FAST ]]; then
    opts+=" -XX:TieredStopAtLevel=1 "
    if [[ -f $ROCKETMQ_JARS/$name.jsa ]]; then opts+=-XX:SharedArchiveFile=$ROCKETMQ_JARS/$name.jsa; else opts+=-XX:+RecordDynamicDumpInfo; fi
  fi
  ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
  # shellcheck disable=SC2086
  ROCKETMQ_HOME=$ROCKETMQ_DIR setsid "$java" "-Drmq.mark=$ROCKETMQ_DIR/$name" \
    -Xms32m "-Xmx$heap" -Xss512k -XX:+UseSerialGC -XX:MaxMetaspaceSize=160m \
    -XX:ReservedCodeCacheSize=64m -XX:+ExitOnOutOfMemoryError \
    -Djava.net.preferIPv4Stack=true "-Duser.home=$ROCKETMQ_DIR/home/$name" \
    "-Djava.io.tmpdir=$ROCKETMQ_DIR/tmp" -Drocketmq.broker.diskSpaceWarningLevelRatio=0.98 \
    $opts -cp "$cp" "$@" >>"$log/$name.out" 2>&1 </dev/null &
  printf '%s\n' "$!" >"$run/$name.pid"
  disown
  # Until Java is executed its process carries no mark, and looks like one that died.
  for _ in {1..50}; do
    if pid_of "$name" >/dev/null; then break; fi
    sleep 0.1
  done
}

await() { # NAME what command...
  local name=$1 what=$2 end=$((SECONDS + RMQ_START_TIMEOUT))
  shift 2
  until "$@"; do
    pid_of "$name" >/dev/null || { tail -n 20 "$log/$name.out" >&2; die "$name died before: $what"; }
    ((SECONDS < end)) || { tail -n 20 "$log/$name.out" >&2; die "$name: timed out: $what"; }
    sleep 0.1
  done
}

said() { grep -qF -- "$2" "$log/$1.out" 2>/dev/null; }

start_namesrv() {
  if pid_of namesrv >/dev/null; then return; fi
  if port_open "$RMQ_NAMESRV_PORT"; then die "port $RMQ_NAMESRV_PORT is in use"; fi
  : >"$log/namesrv.out"
  launch namesrv "$RMQ_NAMESRV_HEAP" "$jars/*" "-XX:MaxDirectMemorySize=32m" \
    org.apache.rocketmq.namesrv.NamesrvStartup -c "$conf/namesrv.conf"
  await namesrv "port $RMQ_NAMESRV_PORT" port_open "$RMQ_NAMESRV_PORT"
}

start_broker() {
  if pid_of broker >/dev/null; then return; fi
  if port_open "$RMQ_BROKER_PORT"; then die "port $RMQ_BROKER_PORT is in use"; fi
  : >"$log/broker.out"
  launch broker "$RMQ_BROKER_HEAP" "$broker_jars/*" \
    "-XX:MaxDirectMemorySize=256m --add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED $RMQ_BROKER_OPTS" \
    org.apache.rocketmq.broker.BrokerStartup -c "$conf/broker.conf"
  await broker "boot success" said broker "boot success"
  # The name server may not route to it yet, and a proxy that starts too early exits.
  admin <<<"await DefaultCluster $RMQ_START_TIMEOUT" >>"$log/admin.out" 2>&1 ||
    die "the broker did not register"
}

start_proxy() {
  if pid_of proxy >/dev/null; then return; fi
  if port_open "$RMQ_GRPC_PORT"; then die "port $RMQ_GRPC_PORT is in use"; fi
  # A proxy ends by itself while the name server does not know the broker, for up to 10 s after its own
  # restart: whoever supervises it starts it again, as here.
  local tries=5
  until
    : >"$log/proxy.out"
    launch proxy "$RMQ_PROXY_HEAP" "$jars/*" "-XX:MaxDirectMemorySize=256m ${RMQ_SECURE:+-Dtls.server.mode=enforcing} $RMQ_PROXY_OPTS" \
      org.apache.rocketmq.proxy.ProxyStartup -pm cluster -pc "$conf/rmq-proxy.json"
    (await proxy "startup" said proxy "startup successfully") || said proxy "startup successfully"
  do
    ((--tries)) || die "the proxy does not start"
    sleep 2
  done
  await proxy "port $RMQ_GRPC_PORT" port_open "$RMQ_GRPC_PORT"
}

prepare() {
  mkdir -p "$conf" "$data/namesrv" "$data/store" "$run" "$log" "$ROCKETMQ_DIR/tmp"
  render
}

# archive keeps the class data of those that run.
archive() {
  local name
  for name in namesrv broker proxy; do
    [[ ! -f $ROCKETMQ_JARS/$name.jsa ]] || continue
    "${java%java}jcmd" "$(pid_of "$name")" VM.cds dynamic_dump "$ROCKETMQ_JARS/$name.new" >>"$log/admin.out" 2>&1 || true
    [[ ! -f $ROCKETMQ_JARS/$name.new ]] || mv "$ROCKETMQ_JARS/$name.new" "$ROCKETMQ_JARS/$name.jsa"
  done
}

start() {
  fetch
  prepare
  local t0=$SECONDS
  start_namesrv
  start_broker
  # Before the proxy: it keeps what it has read of a topic or group for some seconds.
  { topic_line penstock 60; group_line penstock-agents penstock; users; } | checked 2>>"$log/admin.out"
  [[ -z $RMQ_SECURE ]] || : >"$secure/made"
  start_proxy
  [[ -z $RMQ_FAST ]] || archive
  say "ready in $((SECONDS - t0)) s (namesrv $(pid_of namesrv), broker $(pid_of broker), proxy $(pid_of proxy))"
  printf '127.0.0.1:%s\n' "$RMQ_GRPC_PORT"
}

halt_one() { # NAME SIGNAL
  local pid n
  pid=$(pid_of "$1") || { rm -f "$run/$1.pid"; return 0; }
  kill "-$2" "$pid" 2>/dev/null || true
  for ((n = 0; n < 150; n++)); do
    [[ -d /proc/$pid ]] || break
    # A clean shutdown takes 5 to 12 s, and timers may keep a broker's JVM alive after it.
    if ((n == 60)); then kill -KILL "$pid" 2>/dev/null || true; fi
    sleep 0.1
  done
  rm -f "$run/$1.pid"
}

stop() {
  local name
  for name in proxy broker namesrv; do halt_one "$name" TERM & done
  wait
  say "stopped"
}

status() {
  local name pid rc=0
  for name in namesrv broker proxy; do
    if pid=$(pid_of "$name"); then
      printf '%-8s pid %-7s rss %4d MiB\n' "$name" "$pid" \
        $(($(awk '/^VmRSS/ {print $2}' "/proc/$pid/status") / 1024))
    else
      printf '%-8s not running\n' "$name"
      rc=1
    fi
  done
  return "$rc"
}

admin() {
  mkdir -p "$ROCKETMQ_DIR/home/admin" "$ROCKETMQ_DIR/tmp"
  NAMESRV_ADDR=127.0.0.1:$RMQ_NAMESRV_PORT ROCKETMQ_HOME=$ROCKETMQ_DIR "$java" -Xmx96m \
    -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto "-Duser.home=$ROCKETMQ_DIR/home/admin" \
    -Djava.net.preferIPv4Stack=true "-Djava.io.tmpdir=$ROCKETMQ_DIR/tmp" \
    -cp "$ROCKETMQ_JARS/classes:$jars/*" RmqAdmin
}

topic_line() { printf 'updateTopic -c DefaultCluster -t %s -r 1 -w 1 -a +message.type=LITE,+lite.topic.expiration=%s\n' "$1" "${2:-60}"; }
group_line() { printf 'updateSubGroup -c DefaultCluster -g %s -o true -r %s --attributes +lite.bind.topic=%s,+lite.sub.client.max.event.cnt=1000000,+lite.sub.client.quota=10000%s\n' "$1" "$RMQ_RETRY_MAX" "$2" "${3:+,$3}"; }

users() {
  local user
  [[ -n $RMQ_SECURE && ! -f $secure/made ]] || return 0
  for user in penstock publisher stranger; do
    printf 'createUser -c DefaultCluster -u %s -p %s -t Normal\n' "$user" "$(tail -n 1 "$secure/$user")"
  done
  printf 'createAcl -c DefaultCluster -s User:penstock -r Topic:penstock,Group:penstock-agents -a Pub,Sub -d Allow\n'
  printf 'createAcl -c DefaultCluster -s User:publisher -r Topic:penstock -a Pub -d Allow\n'
}

checked() { # run the admin lines on standard input; fail unless each one reports success
  local out want
  out=$(cat)
  want=$(grep -c . <<<"$out")
  out=$(admin <<<"$out" 2>&1) || { printf '%s\n' "$out" >&2; die "admin failed"; }
  printf '%s\n' "$out" >&2
  (($(grep -c 'success' <<<"$out") >= want)) || die "admin command failed"
}

case ${1:-} in
fetch | start | stop | status | admin) "$1" ;;
topic) topic_line "${2:-penstock}" "${3:-60}" | checked ;;
group) group_line "${2:-penstock-agents}" "${3:-penstock}" "${4:-}" | checked ;;
kill-namesrv | kill-broker | kill-proxy) halt_one "${1#kill-}" KILL ;;
term-namesrv | term-broker | term-proxy) halt_one "${1#term-}" TERM ;;
start-namesrv | start-broker | start-proxy) prepare; "start_${1#start-}" ;;
restart-namesrv | restart-broker | restart-proxy)
  halt_one "${1#restart-}" TERM
  prepare
  "start_${1#restart-}"
  ;;
clean) stop; rm -rf "$ROCKETMQ_DIR" ;;
*) sed -n '2,/^set/p' "${BASH_SOURCE[0]}" | sed '$d;s/^# \{0,1\}//'; exit 2 ;;
esac
